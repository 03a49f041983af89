// SPDX-License-Identifier: Apache-2.0
// For tests: an arena in memory, and the state of a small model cut in a chosen way over ranks,
// whose every element is a function of (seed, tensor, global index), so that any cut can be checked
// against any other.
#ifndef HOLDFAST_CKPT_TESTING_TEST_WORLD_H_
#define HOLDFAST_CKPT_TESTING_TEST_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "ckpt/client/snapshot.h"
#include "ckpt/store.h"

namespace holdfast::ckpt::testing {

// A mapping with a valid arena. Throws nothing: base() is null when there is no memory.
class TestArena {
 public:
  TestArena(uint64_t job, uint32_t rank, uint32_t world_size, uint64_t data_capacity,
            uint32_t buffers = 2, uint32_t tensors = 64);
  ~TestArena();
  TestArena(const TestArena&) = delete;
  TestArena& operator=(const TestArena&) = delete;
  void* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  rank::ArenaHeader* header() const { return static_cast<rank::ArenaHeader*>(base_); }
  char* Data(uint32_t buffer) const;
  rank::TensorEntry* Table(uint32_t buffer) const;
  rank::BufferState State(uint32_t buffer) const;
  // As the agent does: SEALED to WRITING and back. False when the buffer was in another state.
  bool Claim(uint32_t buffer);
  bool Release(uint32_t buffer, bool persisted);

 private:
  void* base_ = nullptr;
  size_t bytes_ = 0;
};

struct TestTensor {
  std::string name;
  uint32_t dtype = rank::kF32;
  std::vector<uint64_t> shape;
};

// One box of a tensor with its bytes.
struct OwnedBox {
  TensorView view;
  std::vector<char> bytes;
};

// The byte of `tensor` at byte `index` of its row-major global form.
uint8_t TestByte(uint64_t seed, const std::string& tensor, uint64_t index);
std::vector<char> GlobalBytes(uint64_t seed, const TestTensor& tensor);
// The bytes of a box, computed element by element (slowly, and with no code of the engine).
std::vector<char> BoxBytes(uint64_t seed, const TestTensor& tensor, const Box& box);
OwnedBox MakeBox(uint64_t seed, const TestTensor& tensor, const Box& box, uint32_t replica);
std::vector<TensorView> Views(std::vector<OwnedBox>& boxes);

// The model of these tests: a matrix, a vector, a scalar, bytes of odd length, an empty tensor,
// four dimensions.
std::vector<TestTensor> TestModel();

// How a tensor is cut: along its first or last dimension over `parts` ranks, each part held by
// `copies` ranks.
struct Cut {
  uint32_t parts = 1;
  uint32_t copies = 1;
  bool last_dimension = false;
  uint32_t world_size() const { return parts * copies; }
};
// What one rank holds; rank = copy * parts + part. What cannot be cut is written by part 0 and a
// replica elsewhere.
std::vector<OwnedBox> RankState(uint64_t seed, const std::vector<TestTensor>& model, const Cut& cut,
                                uint32_t rank);

// Takes a snapshot of one rank's state and prepares it in the store. The arena lives only for the
// call.
absl::StatusOr<RankManifest> SaveRank(Store* store, const CheckpointId& id, uint64_t seed,
                                      const std::vector<TestTensor>& model, const Cut& cut,
                                      uint32_t rank);
// All ranks, joined and committed.
absl::Status SaveAll(Store* store, const CheckpointId& id, uint64_t seed,
                     const std::vector<TestTensor>& model, const Cut& cut);
// Reads every tensor whole and compares it with what `seed` gives.
absl::Status CheckAll(Store* store, const CheckpointId& id, uint64_t seed,
                      const std::vector<TestTensor>& model);

inline constexpr int64_t kTestCommitWallNs = 1'700'000'000'000'000'000;

}  // namespace holdfast::ckpt::testing

#endif  // HOLDFAST_CKPT_TESTING_TEST_WORLD_H_
