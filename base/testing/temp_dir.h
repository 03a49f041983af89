// SPDX-License-Identifier: Apache-2.0
// A directory for one test, removed with all it holds at the end.
#ifndef HOLDFAST_BASE_TESTING_TEMP_DIR_H_
#define HOLDFAST_BASE_TESTING_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace holdfast::testing {

class TempDir {
 public:
  // Below `parent`, or below TMPDIR (or /tmp) when it is empty. path() is empty when it could not
  // be made.
  explicit TempDir(std::string parent = "") {
    if (parent.empty()) {
      const char* tmp = std::getenv("TMPDIR");
      parent = tmp != nullptr && *tmp != '\0' ? tmp : "/tmp";
    }
    std::string pattern = parent + "/holdfast-test-XXXXXX";
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string Sub(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace holdfast::testing

#endif  // HOLDFAST_BASE_TESTING_TEMP_DIR_H_
