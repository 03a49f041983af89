// SPDX-License-Identifier: Apache-2.0
// The one place that makes gRPC channels and client contexts, so that every call has a deadline and
// every channel comes back quickly after an outage (gRPC's defaults need 1.1 s after 0.3 s; these
// need 0.3-0.5 s).
#ifndef HOLDFAST_PROTO_CHANNEL_H_
#define HOLDFAST_PROTO_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace holdfast::proto {

// `endpoint` is "unix:/path" or "host:port". Back-off 50-200 ms, keepalive 2 s, its own subchannel
// pool, message limit kRpcMessageBytesMax. Each call carries `run_key` unless it is empty
// (proto/run_key.h).
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& endpoint,
                                           const std::string& run_key = "");

// What every server of ours sets: the same message limit, and permission for the channels'
// keepalive pings (gRPC's default answers a ping each 2 s on a quiet stream with GOAWAY).
void ConfigureServer(grpc::ServerBuilder* builder);

// Sets the deadline, and wait_for_ready unless the call is a probe that must fail at once.
void PrepareContext(grpc::ClientContext* context, int64_t deadline_ms, bool wait_for_ready = true);

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

// A fresh idempotency key (128 random bits, hex).
std::string NewIdempotencyKey();

}  // namespace holdfast::proto

#endif  // HOLDFAST_PROTO_CHANNEL_H_
