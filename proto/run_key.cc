// SPDX-License-Identifier: Apache-2.0
#include "proto/run_key.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace holdfast::proto {
namespace {

constexpr size_t kKeyBytes = 32;

class KeyInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit KeyInterceptor(std::string key) : key_(std::move(key)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA))
      methods->GetSendInitialMetadata()->emplace(kRunKeyMetadata, key_);
    methods->Proceed();
  }

 private:
  const std::string key_;
};

class KeyInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit KeyInterceptorFactory(std::string key) : key_(std::move(key)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new KeyInterceptor(key_);  // gRPC takes it
  }

 private:
  const std::string key_;
};

bool OverUnixSocket(const grpc::ServerContextBase& context) {
  return context.peer().rfind("unix:", 0) == 0;
}

}  // namespace

std::string NewRunKey() {
  char bytes[kKeyBytes];
  size_t have = 0;
  while (have < sizeof bytes) {
    const ssize_t got = ::getrandom(bytes + have, sizeof bytes - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
    // Only EINTR is possible for so few bytes with flags 0 (getrandom(2)).
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof bytes));
}

absl::Status CheckRunKeyForm(std::string_view key) {
  const bool plain = std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c));
  });
  if (plain && key.size() >= kRunKeyCharsMin && key.size() <= kRunKeyCharsMax)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the run's key has ", key.size(), " characters", plain ? "" : ", not all letters or digits",
      "; it must be ", kRunKeyCharsMin, " to ", kRunKeyCharsMax,
      " letters and digits, as `openssl rand -hex 32` makes them"));
}

absl::StatusOr<std::string> ReadRunKeyFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s holds a run's key, but it is not a file that only its user can read (owner %d, mode "
        "%04o; this is user %d); remove it, or chmod 600",
        path, st.st_uid, st.st_mode & 07777, ::geteuid()));
  }
  std::string text(kRunKeyCharsMax + 1, '\0');
  const ssize_t n = ::read(fd.get(), text.data(), text.size());
  if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
  text.resize(static_cast<size_t>(n));
  text.resize(std::min(text.size(), text.find('\n')));
  HF_RETURN_IF_ERROR(Annotate(CheckRunKeyForm(text), path));
  return text;
}

bool SameRunKey(std::string_view expected, std::string_view given) {
  // Each character of what was given is compared with one, whatever the outcome so far.
  unsigned difference = expected.size() == given.size() && !expected.empty() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char against = expected.empty() ? '\0' : expected[i % expected.size()];
    difference |= static_cast<unsigned char>(against) ^ static_cast<unsigned char>(given[i]);
  }
  return difference == 0;
}

grpc::Status CheckRunKey(const std::string& key, const grpc::ServerContextBase& context) {
  if (key.empty() || OverUnixSocket(context)) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto [begin, end] = metadata.equal_range(kRunKeyMetadata);
  for (auto it = begin; it != end; ++it) {
    if (SameRunKey(key, std::string_view(it->second.data(), it->second.size())))
      return grpc::Status::OK;
  }
  return {grpc::StatusCode::UNAUTHENTICATED, begin == end
                                                 ? "this run has a key, and the call carries none"
                                                 : "the call carries the key of another run"};
}

std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
RunKeyInterceptors(const std::string& key) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> out;
  if (!key.empty()) out.push_back(std::make_unique<KeyInterceptorFactory>(key));
  return out;
}

}  // namespace holdfast::proto
