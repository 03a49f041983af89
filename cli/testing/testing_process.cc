// SPDX-License-Identifier: Apache-2.0
#include "cli/testing/testing_process.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

extern char** environ;

namespace holdfast::cli {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

std::string MakeDirectory() {
  const char* base = ::getenv("TMPDIR");
  std::string pattern = std::string(base == nullptr ? "/tmp" : base) + "/hf-cli-XXXXXX";
  EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
  return pattern;
}

}  // namespace

RunningProgram::RunningProgram(const std::vector<std::string>& argv,
                               const std::vector<std::string>& extra_environment)
    : directory_(MakeDirectory()) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, (directory_ + "/out").c_str(), flags, 0644);
  ::posix_spawn_file_actions_addopen(&actions, 2, (directory_ + "/err").c_str(), flags, 0644);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string(*entry).rfind("HOLDFAST_", 0) != 0) environment.emplace_back(*entry);
  }
  environment.insert(environment.end(), extra_environment.begin(), extra_environment.end());
  const int error = ::posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr, Pointers(argv).data(),
                                  Pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << argv[0];
}

RunningProgram::~RunningProgram() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    Wait();
  }
  std::filesystem::remove_all(directory_);
}

std::string RunningProgram::OutSoFar() const { return ReadText(directory_ + "/out"); }

Output RunningProgram::Wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  Output output;
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  output.out = ReadText(directory_ + "/out");
  output.err = ReadText(directory_ + "/err");
  return output;
}

std::string BuiltProgram(const std::string& name) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return (self.parent_path().parent_path() / "bin" / name).string();
}

Output RunToEnd(const std::vector<std::string>& argv,
                const std::vector<std::string>& extra_environment) {
  return RunningProgram(argv, extra_environment).Wait();
}

bool WaitUntil(const std::function<bool()>& condition, int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TemporaryDirectory::TemporaryDirectory() : path_(MakeDirectory()) {}
TemporaryDirectory::~TemporaryDirectory() { std::filesystem::remove_all(path_); }

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool FileExists(const std::string& path) { return std::filesystem::exists(path); }

}  // namespace holdfast::cli
