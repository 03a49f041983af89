// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include "cli/app.h"

int main(int argc, char** argv) {
  // A reader that goes away (`holdfast events -f | head`) is seen as a failed write.
  ::signal(SIGPIPE, SIG_IGN);
  return holdfast::cli::RunApp(argc, argv);
}
