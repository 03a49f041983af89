// SPDX-License-Identifier: Apache-2.0
#include "ckpt/testing/test_world.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast::ckpt::testing {

TestArena::TestArena(uint64_t job, uint32_t rank, uint32_t world_size, uint64_t data_capacity,
                     uint32_t buffers, uint32_t tensors) {
  bytes_ = rank::ArenaLayout(data_capacity, tensors, buffers, nullptr);
  if (bytes_ == 0) return;
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  base_ = memory;
  rank::ArenaLayout(data_capacity, tensors, buffers, header());
  header()->job = job;
  header()->rank = rank;
  header()->world_size = world_size;
}

TestArena::~TestArena() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

char* TestArena::Data(uint32_t buffer) const {
  return reinterpret_cast<char*>(Table(buffer)) + header()->table_bytes;
}

rank::TensorEntry* TestArena::Table(uint32_t buffer) const {
  char* base = static_cast<char*>(base_);
  return reinterpret_cast<rank::TensorEntry*>(base + header()->buffer_offset +
                                              buffer * header()->buffer_stride);
}

rank::BufferState TestArena::State(uint32_t buffer) const {
  return static_cast<rank::BufferState>(header()->buffer[buffer].state.load());
}

bool TestArena::Claim(uint32_t buffer) {
  uint32_t sealed = rank::kBufferSealed;
  return header()->buffer[buffer].state.compare_exchange_strong(sealed, rank::kBufferWriting);
}

bool TestArena::Release(uint32_t buffer, bool persisted) {
  uint32_t writing = rank::kBufferWriting;
  if (persisted) header()->buffer[buffer].persisted.store(1);
  return header()->buffer[buffer].state.compare_exchange_strong(writing, rank::kBufferSealed);
}

uint8_t TestByte(uint64_t seed, const std::string& tensor, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15ull + index * 0xbf58476d1ce4e5b9ull;
  for (const char c : tensor) z = (z ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  z ^= z >> 29;
  z *= 0x94d049bb133111ebull;
  return static_cast<uint8_t>(z >> 56);
}

std::vector<char> GlobalBytes(uint64_t seed, const TestTensor& tensor) {
  return BoxBytes(seed, tensor, Box{std::vector<uint64_t>(tensor.shape.size(), 0), tensor.shape});
}

std::vector<char> BoxBytes(uint64_t seed, const TestTensor& tensor, const Box& box) {
  const uint64_t element = rank::DTypeBytes(tensor.dtype);
  uint64_t count = 1;
  for (const uint64_t size : box.size) count *= size;
  std::vector<char> bytes;
  std::vector<uint64_t> at(box.size.size(), 0);
  for (uint64_t n = 0; n < count; ++n) {
    uint64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) index = index * tensor.shape[d] + box.offset[d] + at[d];
    for (uint64_t b = 0; b < element; ++b) {
      bytes.push_back(static_cast<char>(TestByte(seed, tensor.name, index * element + b)));
    }
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < box.size[d]) break;
      at[d] = 0;
    }
  }
  return bytes;
}

OwnedBox MakeBox(uint64_t seed, const TestTensor& tensor, const Box& box, uint32_t replica) {
  OwnedBox owned;
  owned.bytes = BoxBytes(seed, tensor, box);
  owned.view.name = tensor.name;
  owned.view.dtype = tensor.dtype;
  owned.view.global_shape = tensor.shape;
  owned.view.box_offset = box.offset;
  owned.view.box_size = box.size;
  owned.view.replica = replica;
  owned.view.bytes = owned.bytes.size();
  return owned;
}

std::vector<TensorView> Views(std::vector<OwnedBox>& boxes) {
  std::vector<TensorView> views;
  for (OwnedBox& box : boxes) {
    box.view.data =
        box.bytes
            .data();  // set late: a moved vector of boxes keeps its bytes, a copied one does not
    views.push_back(box.view);
  }
  return views;
}

std::vector<TestTensor> TestModel() {
  return {{"layers.0.weight", rank::kF32, {96, 160}},
          {"layers.0.bias", rank::kBF16, {37}},
          {"moments", rank::kF32, {3, 5, 4, 6}},
          {"odd bytes", rank::kU8, {4099}},
          {"scale", rank::kF64, {}},
          {"unused", rank::kI64, {0, 7}}};
}

std::vector<OwnedBox> RankState(uint64_t seed, const std::vector<TestTensor>& model, const Cut& cut,
                                uint32_t rank) {
  const uint32_t part = rank % cut.parts, copy = rank / cut.parts;
  std::vector<OwnedBox> boxes;
  for (const TestTensor& tensor : model) {
    Box box{std::vector<uint64_t>(tensor.shape.size(), 0), tensor.shape};
    const size_t d = tensor.shape.empty() || !cut.last_dimension ? 0 : tensor.shape.size() - 1;
    if (tensor.shape.empty() || tensor.shape[d] < cut.parts) {
      boxes.push_back(MakeBox(seed, tensor, box, rank));
      continue;
    }
    box.offset[d] = tensor.shape[d] * part / cut.parts;
    box.size[d] = tensor.shape[d] * (part + 1) / cut.parts - box.offset[d];
    boxes.push_back(MakeBox(seed, tensor, box, copy));
  }
  return boxes;
}

absl::StatusOr<RankManifest> SaveRank(Store* store, const CheckpointId& id, uint64_t seed,
                                      const std::vector<TestTensor>& model, const Cut& cut,
                                      uint32_t rank) {
  std::vector<OwnedBox> boxes = RankState(seed, model, cut, rank);
  const std::vector<TensorView> views = Views(boxes);
  TestArena arena(id.job.value, rank, cut.world_size(), SnapshotBytes(views));
  if (arena.base() == nullptr) return absl::ResourceExhaustedError("no arena");
  SnapshotWriter writer(arena.base());
  uint32_t buffer = 0;
  std::string reason;
  if (!writer.Take(views, id.attempt, id.step, id.step * 8, true, true, &buffer, &reason))
    return absl::InternalError(reason);
  if (!arena.Claim(buffer)) return absl::InternalError("the buffer is not sealed");
  return store->PrepareRank(id, {arena.base(), arena.bytes(), buffer});
}

absl::Status SaveAll(Store* store, const CheckpointId& id, uint64_t seed,
                     const std::vector<TestTensor>& model, const Cut& cut) {
  std::vector<RankManifest> manifests;
  for (uint32_t rank = 0; rank < cut.world_size(); ++rank) {
    HF_ASSIGN_OR_RETURN(RankManifest manifest, SaveRank(store, id, seed, model, cut, rank));
    manifests.push_back(std::move(manifest));
  }
  HF_ASSIGN_OR_RETURN(const CommitRecord record, JoinManifests(manifests, kTestCommitWallNs));
  return store->WriteCommit(id, EncodeCommitRecord(record));
}

absl::Status CheckAll(Store* store, const CheckpointId& id, uint64_t seed,
                      const std::vector<TestTensor>& model) {
  HF_ASSIGN_OR_RETURN(const CommitRecord record, store->ReadCommit(id));
  for (const TestTensor& tensor : model) {
    const std::vector<char> expected = GlobalBytes(seed, tensor);
    std::vector<char> got(expected.size());
    const Box all{std::vector<uint64_t>(tensor.shape.size(), 0), tensor.shape};
    HF_RETURN_IF_ERROR(store->ReadBox(record, tensor.name, all, got.data()));
    if (got != expected)
      return absl::DataLossError(absl::StrCat("tensor '", tensor.name, "' holds other bytes"));
  }
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt::testing
