// SPDX-License-Identifier: Apache-2.0
// The key of a run whose parts meet over TCP: who holds it may talk to them, nobody else. It is
// carried in the metadata of each call and checked for each call that did not come over a Unix
// socket, which the file system guards. It is in a file of mode 0600 or in the environment, never
// in arguments or logs. It does not encrypt: who can read the network can read it.
//
// Threads: any.
#ifndef HOLDFAST_PROTO_RUN_KEY_H_
#define HOLDFAST_PROTO_RUN_KEY_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::proto {

inline constexpr char kRunKeyMetadata[] = "holdfast-run-key";
inline constexpr size_t kRunKeyCharsMin = 32;  // 128 bits in hexadecimal
inline constexpr size_t kRunKeyCharsMax = 128;

// 256 random bits in hexadecimal.
std::string NewRunKey();

// INVALID_ARGUMENT, without the key in it, unless it is kRunKeyCharsMin to kRunKeyCharsMax letters
// and digits.
absl::Status CheckRunKeyForm(std::string_view key);

// The first line of a file that only this user can read: FAILED_PRECONDITION naming the file and
// its mode or owner otherwise.
absl::StatusOr<std::string> ReadRunKeyFile(const std::string& path);

// In a time that depends on the length of `given` alone.
bool SameRunKey(std::string_view expected, std::string_view given);

// OK for a call over a Unix socket, for one that carries `key`, and for all when `key` is empty;
// else UNAUTHENTICATED.
grpc::Status CheckRunKey(const std::string& key, const grpc::ServerContextBase& context);

// What puts `key` into each call of a channel.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
RunKeyInterceptors(const std::string& key);

}  // namespace holdfast::proto

#endif  // HOLDFAST_PROTO_RUN_KEY_H_
