// SPDX-License-Identifier: Apache-2.0
// What was found while ranks lived, oldest first.
// Threads: any.
#ifndef HOLDFAST_SCHEDULER_OPS_LIST_LEDGER_H_
#define HOLDFAST_SCHEDULER_OPS_LIST_LEDGER_H_

#include <grpcpp/grpcpp.h>

#include "holdfast/v1/scheduler.pb.h"
#include "scheduler/core_lock.h"

namespace holdfast::sched {

grpc::Status ListLedger(CoreLock* core, const v1::ListLedgerRequest& request,
                        v1::ListLedgerResponse* response);

}  // namespace holdfast::sched

#endif  // HOLDFAST_SCHEDULER_OPS_LIST_LEDGER_H_
