// SPDX-License-Identifier: Apache-2.0
#include "proto/channel.h"

#include <sys/random.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "proto/run_key.h"

namespace holdfast::proto {
namespace {

constexpr int kBackoffMinMs = 50;
constexpr int kBackoffMaxMs = 200;
constexpr int kConnectTimeoutMs = 2000;
constexpr int kKeepaliveMs = 2000;
constexpr int kKeepaliveTimeoutMs = 2000;
constexpr int kPingsFromClientsEveryMs = 1000;  // more often is refused by the server

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& endpoint,
                                           const std::string& run_key) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kBackoffMinMs);
  // The shortest time a connection attempt gets. gRPC's own default is 20 s, which would also be
  // the shortest pause between two attempts that hang; one that is refused at once is repeated
  // after the back-off.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kBackoffMaxMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA,
              0);  // a quiet stream must still notice a silent peer
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
              0);  // an http_proxy of the user's shell is not for the control plane
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  args.SetMaxReceiveMessageSize(static_cast<int>(kRpcMessageBytesMax));
  args.SetMaxSendMessageSize(static_cast<int>(kRpcMessageBytesMax));
  if (run_key.empty())
    return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), args);
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      endpoint, grpc::InsecureChannelCredentials(), args, RunKeyInterceptors(run_key));
}

void ConfigureServer(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(kRpcMessageBytesMax));
  builder->SetMaxSendMessageSize(static_cast<int>(kRpcMessageBytesMax));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kPingsFromClientsEveryMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                              0);  // a taken port is an error, never shared silently
}

void PrepareContext(grpc::ClientContext* context, int64_t deadline_ms, bool wait_for_ready) {
  // The monotonic clock: a step of the wall clock must not end or prolong a call.
  context->set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(deadline_ms, GPR_TIMESPAN)));
  context->set_wait_for_ready(wait_for_ready);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // The numbers of both enums are the same by design (google.rpc.Code).
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

std::string NewIdempotencyKey() {
  char bytes[16];
  size_t have = 0;
  while (have < sizeof bytes) {
    const ssize_t got = ::getrandom(bytes + have, sizeof bytes - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
    // Only EINTR is possible for 16 bytes with flags 0 (getrandom(2)).
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof bytes));
}

}  // namespace holdfast::proto
