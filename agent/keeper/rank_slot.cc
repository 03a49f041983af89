// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper/rank_slot.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace holdfast::keeper {

int RecorderMemory::Make(uint64_t job, uint64_t attempt, uint32_t rank, uint32_t world_size) {
  Drop();
  const size_t bytes = rank::RecorderBytes();
  UniqueFd fd(memfd_create("holdfast-recorder", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return errno;
  // All pages now: a store into a page that cannot be had later would be SIGBUS, in the rank or
  // here.
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) return errno;
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return errno;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return errno;
  rank::InitRecorder(base, job, attempt, rank, world_size);
  header_ = static_cast<rank::RecorderHeader*>(base);
  fd_ = std::move(fd);
  return 0;
}

void RecorderMemory::Drop() {
  if (header_ != nullptr) munmap(header_, rank::RecorderBytes());
  header_ = nullptr;
  fd_.Reset();
}

}  // namespace holdfast::keeper
