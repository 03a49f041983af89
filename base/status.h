// SPDX-License-Identifier: Apache-2.0
// Small helpers over absl::Status: early return, a deliberate ignore, errors from errno.
//
// Every error that crosses a component boundary is an absl::Status whose message names what failed
// (file, field, value) and what to do. Codes: INVALID_ARGUMENT bad input, NOT_FOUND,
// FAILED_PRECONDITION an older attempt or a wrong state, RESOURCE_EXHAUSTED no space or a named
// limit, DATA_LOSS bytes that do not match their digest, UNAVAILABLE try again, INTERNAL a bug of
// ours.
#ifndef HOLDFAST_BASE_STATUS_H_
#define HOLDFAST_BASE_STATUS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast {

// A Status for `errno_value`, e.g. ErrnoStatus(errno, "open /var/lib/x"). ENOENT becomes NOT_FOUND,
// EEXIST ALREADY_EXISTS, EACCES/EPERM/EROFS PERMISSION_DENIED, ENOSPC/EDQUOT/EMFILE/ENFILE/ENOMEM
// RESOURCE_EXHAUSTED, the rest UNAVAILABLE or INTERNAL. The message is "<what>: <strerror> (errno
// N)".
absl::Status ErrnoStatus(int errno_value, std::string_view what);

// The same code with "<context>: " put before the message. OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Drops an error on purpose. `reason` says why that is right; it is read by people, not by code.
inline void IgnoreError(const absl::Status&, std::string_view /*reason*/) {}

}  // namespace holdfast

#define HF_CONCAT_INNER(a, b) a##b
#define HF_CONCAT(a, b) HF_CONCAT_INNER(a, b)

#define HF_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::absl::Status hf_status_ = (expr);      \
    if (!hf_status_.ok()) return hf_status_; \
  } while (false)

#define HF_ASSIGN_OR_RETURN(lhs, expr) HF_ASSIGN_OR_RETURN_(HF_CONCAT(hf_or_, __LINE__), lhs, expr)
#define HF_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                         \
  if (!tmp.ok()) return tmp.status();        \
  lhs = std::move(tmp).value()

#endif  // HOLDFAST_BASE_STATUS_H_
