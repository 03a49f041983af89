// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/list_ledger.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status ListLedger(CoreLock* core, const v1::ListLedgerRequest& request,
                        v1::ListLedgerResponse* response) {
  absl::StatusOr<v1::ListLedgerResponse> result =
      core->With([&](Engine& engine, Now) { return engine.ListLedger(request); });
  if (!result.ok()) return proto::ToGrpc(result.status());
  *response = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace holdfast::sched
