// SPDX-License-Identifier: Apache-2.0
#include "scheduler/ops/report_events.h"

#include "proto/channel.h"

namespace holdfast::sched {

grpc::Status ReportEvents(CoreLock* core, const v1::ReportEventsRequest& request,
                          v1::ReportEventsResponse*) {
  return proto::ToGrpc(
      core->With([&](Engine& engine, Now now) { return engine.ReportEvents(request, now); }));
}

}  // namespace holdfast::sched
