// SPDX-License-Identifier: Apache-2.0
#include "cli/up/own_state_dir.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/output.h"
#include "cli/state_dir.h"

namespace holdfast::cli {
namespace {

// Longest socket path below a state directory: "/nodes/n0/keepers/j-1/sock" and the like.
constexpr size_t kStatePathBytesMax = 60;

}  // namespace

absl::StatusOr<OwnStateDir> OwnStateDir::Make(const std::string& wanted) {
  OwnStateDir out;
  if (!wanted.empty()) {
    out.path_ = AbsolutePath(wanted, WorkingDirectory());
    return out;
  }
  const char* set = std::getenv("TMPDIR");
  const bool usable = set != nullptr && set[0] == '/';
  std::string base = usable ? set : "/tmp";
  if (base.size() > kStatePathBytesMax) base = "/tmp";  // sockets have short names
  std::string path = absl::StrCat(base, "/holdfast-run-XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(
        errno, absl::StrCat("cannot make a directory in ", base, base == "/tmp" ? "" : " (TMPDIR)",
                            "; set TMPDIR or --state to one that can be written"));
  }
  out.path_ = path;
  out.temporary_ = true;
  return out;
}

void OwnStateDir::Settle(bool keep, const std::string& what) const {
  if (!temporary_) return;
  if (!keep) return RemoveStateDir(path_);
  Hint(absl::StrCat("holdfast: ", what, " are kept in ", path_));
}

void RemoveStateDir(const std::string& state) {
  std::error_code error;
  std::filesystem::remove_all(state, error);
  if (error) Hint(absl::StrCat("holdfast: ", state, " cannot be removed: ", error.message()));
}

}  // namespace holdfast::cli
