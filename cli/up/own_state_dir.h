// SPDX-License-Identifier: Apache-2.0
// A state directory for one run alone.
#ifndef HOLDFAST_CLI_UP_OWN_STATE_DIR_H_
#define HOLDFAST_CLI_UP_OWN_STATE_DIR_H_

#include <string>

#include "absl/status/statusor.h"

namespace holdfast::cli {

class OwnStateDir {
 public:
  // `wanted`, made absolute, or when it is empty a fresh directory below TMPDIR or /tmp.
  static absl::StatusOr<OwnStateDir> Make(const std::string& wanted);
  const std::string& path() const { return path_; }
  bool temporary() const { return temporary_; }
  // Of a temporary one: removes it, or says where `what` ("logs and state") is kept when `keep`.
  void Settle(bool keep, const std::string& what) const;

 private:
  std::string path_;
  bool temporary_ = false;
};

// Removes `state` and all in it; a hint when that fails.
void RemoveStateDir(const std::string& state);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_UP_OWN_STATE_DIR_H_
