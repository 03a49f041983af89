// SPDX-License-Identifier: Apache-2.0
#include "tests/rank/misbehave.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>

#include "base/rank/message.h"
#include "base/rank/recorder.h"
#include "base/unique_fd.h"

namespace holdfast::test_rank {
namespace {

UniqueFd ConnectToKeeper() {
  const char* path = getenv("HOLDFAST_SOCKET");
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path == nullptr || strlen(path) >= sizeof(address.sun_path)) return UniqueFd();
  strcpy(address.sun_path, path);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return UniqueFd();
  return fd;
}

void SendRaw(const void* bytes, size_t count) {
  const UniqueFd fd = ConnectToKeeper();
  if (fd.valid() && send(fd.get(), bytes, count, MSG_NOSIGNAL) < 0) perror("nonsense");
}

// Overwrites what the header of the own recorder says of its own layout.
void SpoilRecorder(uint64_t attempt) {
  const UniqueFd fd = ConnectToKeeper();
  rank::Message hello;
  hello.type = rank::kHello;
  hello.attempt = attempt;
  rank::Message welcome;
  rank::Descriptors received;
  if (!fd.valid() || rank::SendMessage(fd.get(), hello, nullptr, nullptr, 0) != 0 ||
      rank::ReceiveMessage(fd.get(), &welcome, nullptr, 0, &received) != 1 || received.count == 0) {
    fprintf(stderr, "nonsense: no recorder\n");
    return;
  }
  void* base =
      mmap(nullptr, rank::RecorderBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, received.fds[0], 0);
  if (base != MAP_FAILED) {
    auto* header = static_cast<rank::RecorderHeader*>(base);
    header->step_ring_offset = ~0ull;
    header->message_offset = ~0ull - 7;
    header->step_slots = ~0u;
    header->total_bytes = 1;
    header->magic = 0;
    munmap(base, rank::RecorderBytes());
  }
  // And, being known now, a message that no rank sends.
  rank::Message alien;
  alien.type = rank::kQuit;
  alien.attempt = attempt;
  rank::SendMessage(fd.get(), alien, nullptr, nullptr, 0);
  for (int i = 0; i < received.count; ++i) close(received.fds[i]);
}

void WriteNonsense(uint64_t attempt) {
  char garbage[300];
  memset(garbage, 0xa5, sizeof(garbage));
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, sizeof(garbage)})
    SendRaw(garbage, bytes);
  rank::Message early;
  early.type = rank::kSealed;
  SendRaw(&early, sizeof(early));
  early.type = rank::kAttach;
  SendRaw(&early, sizeof(early));
  SpoilRecorder(attempt);
}

}  // namespace

void Misbehave(const Faults& f, uint32_t rank, uint64_t attempt, uint64_t step) {
  if (rank != f.rank || (f.attempt != 0 && attempt != f.attempt)) return;
  if (step == f.nonsense_step) WriteNonsense(attempt);
  if (step == f.exit_step) {
    fprintf(stderr, "exiting with %d at step %llu, as told\n", f.exit_code,
            static_cast<unsigned long long>(step));
    _exit(f.exit_code);
  }
  if (step == f.signal_step) raise(f.signal);
  while (step == f.hang_step) pause();
  if (step == f.spin_step) {
    for (std::atomic<uint64_t> turns{0};;) turns.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace holdfast::test_rank
