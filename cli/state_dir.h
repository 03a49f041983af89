// SPDX-License-Identifier: Apache-2.0
// Where things are: the state directory, the scheduler's endpoint, the sibling programs.
#ifndef HOLDFAST_CLI_STATE_DIR_H_
#define HOLDFAST_CLI_STATE_DIR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::cli {

// The longest path a Unix socket can have (sun_path less its NUL).
inline constexpr size_t kSocketPathBytesMax = 107;

// What decides the state directory and the endpoint, taken from the process once.
struct Surroundings {
  std::string state_flag;     // --state
  std::string endpoint_flag;  // --endpoint
  std::string state_env;      // $HOLDFAST_STATE
  std::string endpoint_env;   // $HOLDFAST_ENDPOINT
  std::string home;           // $HOME
  std::string working_directory;
  bool root = false;
};
Surroundings ReadSurroundings(const std::string& state_flag, const std::string& endpoint_flag);

// --state, else $HOLDFAST_STATE, else /var/lib/holdfast for root, else ~/.local/state/holdfast.
// Always absolute.
absl::StatusOr<std::string> StateDirectory(const Surroundings& s);
// --endpoint, else unix:<state>/scheduler.sock if --state is given, else $HOLDFAST_ENDPOINT, else
// unix:<state>/scheduler.sock.
absl::StatusOr<std::string> Endpoint(const Surroundings& s);

// `path` made absolute against `base` and cleaned of "." and "//"; ".." is left as it is (links).
std::string AbsolutePath(std::string_view path, std::string_view base);
std::string WorkingDirectory();

// The file `name` beside this program, else in `PATH`, else NOT_FOUND that says where it was looked
// for. `bin_dir`, when not empty, is the only place.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& bin_dir = "");

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_STATE_DIR_H_
