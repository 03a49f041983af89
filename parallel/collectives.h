// SPDX-License-Identifier: Apache-2.0
// Process groups, one for each axis of the mesh, and the collectives the trainer uses. Each call
// checks what Gloo does not: a non-contiguous tensor is corrupted silently there (row 0 summed, the
// others untouched), sizes that differ hang.
//
// Exceptions: inside autograd a collective can only throw. Collectives throw CollectiveError;
// Guard() is the one place that turns it, and LibTorch's own exceptions, into a Status: UNAVAILABLE
// for a lost peer, INTERNAL for everything else. Threads: one thread uses a group at a time, in the
// same program order on all ranks.
#ifndef HOLDFAST_PARALLEL_COLLECTIVES_H_
#define HOLDFAST_PARALLEL_COLLECTIVES_H_

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/mesh.h"

namespace at {
class Tensor;
}
namespace c10d {
class Store;
}

namespace holdfast::parallel {

// A peer is gone, or did not answer in time. The group is poisoned: a new attempt makes new ones.
class CollectiveError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Reduce { kSum, kMax };

class Group {
 public:
  virtual ~Group() = default;
  virtual int size() const = 0;
  virtual int index() const = 0;
  // In place; bitwise the same on all ranks. `tensor` is a contiguous CPU tensor of f32, f64 or
  // i64. With one rank: nothing.
  virtual void AllReduce(at::Tensor& tensor, Reduce op) = 0;
};

// The groups of a rank. dp and tp may be the same object as world.
struct Groups {
  std::shared_ptr<Group> world, dp, tp;
};

struct GroupOptions {
  int64_t timeout_ms = 120'000;
  std::string prefix;  // names the attempt: keys of an older one must never satisfy a wait
  std::string host = "127.0.0.1";  // own address, where peers connect
};

// Connects to the peers of all groups. `store` may be null when mesh.ranks() is 1.
absl::StatusOr<Groups> ConnectGroups(const Mesh& mesh, c10::intrusive_ptr<c10d::Store> store,
                                     const GroupOptions& options);

// A group of one rank.
std::shared_ptr<Group> SoloGroup();

// The address of this machine in the network of `master` (a name or an address): what peers can
// reach. Loopback for an empty or local one.
std::string LocalAddressTowards(const std::string& master);

// Runs `body`; a thrown exception becomes a Status (see above) that begins with `what`.
absl::Status Guard(const std::string& what, const std::function<void()>& body);

}  // namespace holdfast::parallel

#endif  // HOLDFAST_PARALLEL_COLLECTIVES_H_
