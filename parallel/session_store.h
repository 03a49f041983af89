// SPDX-License-Identifier: Apache-2.0
// c10d's key-value store over the rank's session with its keeper: the rendezvous of one attempt. No
// rank hosts what another needs, so the store is up before the first rank starts and dies with the
// attempt.
//
// Threads: any (the session serialises requests). The session must outlive the store. Failures are
// thrown as c10::DistStoreError, as c10d expects; parallel/collectives.h's Guard turns them into a
// Status.
#ifndef HOLDFAST_PARALLEL_SESSION_STORE_H_
#define HOLDFAST_PARALLEL_SESSION_STORE_H_

#include <c10/util/intrusive_ptr.h>

#include <cstdint>

namespace c10d {
class Store;
}

namespace holdfast::client {
class Session;
}

namespace holdfast::parallel {

// `timeout_ms` bounds every wait.
c10::intrusive_ptr<c10d::Store> MakeSessionStore(client::Session* session, int64_t timeout_ms);

}  // namespace holdfast::parallel

#endif  // HOLDFAST_PARALLEL_SESSION_STORE_H_
