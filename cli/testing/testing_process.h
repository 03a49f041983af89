// SPDX-License-Identifier: Apache-2.0
// For tests: runs the built programs, and a directory that goes away.
#ifndef HOLDFAST_CLI_TESTING_TESTING_PROCESS_H_
#define HOLDFAST_CLI_TESTING_TESTING_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace holdfast::cli {

struct Output {
  int code = -1;  // 128 + signal when killed
  std::string out;
  std::string err;
};

// A started program whose output is collected. Killed by the destructor when it still runs.
class RunningProgram {
 public:
  RunningProgram(const std::vector<std::string>& argv,
                 const std::vector<std::string>& extra_environment = {});
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  // What it wrote to stdout so far.
  std::string OutSoFar() const;
  // Waits for its end.
  Output Wait();

 private:
  std::string directory_;
  pid_t pid_ = 0;
};

// <build>/bin/<name>.
std::string BuiltProgram(const std::string& name);
Output RunToEnd(const std::vector<std::string>& argv,
                const std::vector<std::string>& extra_environment = {});

// Looks until `condition` holds; false after `seconds`.
bool WaitUntil(const std::function<bool()>& condition, int seconds = 30);

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void WriteText(const std::string& path, const std::string& text);
std::string ReadText(const std::string& path);
bool FileExists(const std::string& path);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_TESTING_TESTING_PROCESS_H_
