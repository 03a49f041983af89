// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "ckpt/tool.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return holdfast::ckpt::RunTool(holdfast::PosixFileSystem(), arguments, std::cin, std::cout,
                                 std::cerr);
}
