// SPDX-License-Identifier: Apache-2.0
// The C ABI over client::Session. No exception leaves it.
#include "client/holdfast.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "client/session.h"

using holdfast::client::Error;
using holdfast::client::Session;

struct hf_session {
  std::unique_ptr<Session> session;
  // What the newest hf_restore_list gave.
  std::vector<holdfast::ckpt::TensorView> listed;
  std::vector<hf_tensor> list;
};

namespace {

thread_local std::string last_error;

int Fail(int code, const char* text) {
  last_error = text;
  return code;
}

template <typename Function>
int Guarded(Function&& function) {
  try {
    const Error error = function();
    if (error) last_error = error.message;
    return error.code;
  } catch (const std::bad_alloc&) {
    return ENOMEM;  // and no text: there is no memory for one
  } catch (const std::exception& e) {
    return Fail(EIO, e.what());
  }
}

std::vector<holdfast::ckpt::TensorView> Views(const hf_tensor* tensors, size_t count) {
  std::vector<holdfast::ckpt::TensorView> views(count);
  for (size_t i = 0; i < count; ++i) {
    const hf_tensor& t = tensors[i];
    views[i].name = t.name;
    views[i].dtype = t.dtype;
    views[i].global_shape.assign(t.global_shape, t.global_shape + t.dims);
    views[i].box_offset.assign(t.box_offset, t.box_offset + t.dims);
    views[i].box_size.assign(t.box_size, t.box_size + t.dims);
    views[i].replica = t.replica;
    views[i].data = t.data;
    views[i].bytes = t.bytes;
  }
  return views;
}

uint64_t MonoNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

extern "C" {

int hf_init(hf_session** out, int64_t timeout_ms) {
  *out = nullptr;
  return Guarded([&] {
    Error error;
    auto session = Session::Connect(timeout_ms, &error);
    if (!error) *out = new hf_session{std::move(session), {}, {}};
    return error;
  });
}

void hf_close(hf_session* session) { delete session; }
const char* hf_last_error(void) { return last_error.c_str(); }

int hf_detached(const hf_session* s) { return s->session->Detached() ? 1 : 0; }
uint64_t hf_job(const hf_session* s) { return s->session->job(); }
uint64_t hf_attempt(const hf_session* s) { return s->session->attempt(); }
uint32_t hf_rank(const hf_session* s) { return s->session->rank(); }
uint32_t hf_world_size(const hf_session* s) { return s->session->world_size(); }

void hf_enter_phase(hf_session* s, uint32_t phase, uint64_t step, uint32_t micro_batch) {
  if (phase > holdfast::rank::kPhaseDone) return;
  Guarded([&] {
    s->session->EnterPhase(static_cast<holdfast::rank::Phase>(phase), step, micro_batch);
    return Error();
  });
}

void hf_finish_step(hf_session* s, const hf_step* step) {
  Guarded([&] {
    holdfast::rank::StepRecord record;
    record.step = step->step;
    record.samples = step->samples;
    record.loss = step->loss;
    record.grad_norm = step->grad_norm;
    record.lr = step->lr;
    record.tokens_per_s = step->tokens_per_s;
    record.done_ns = MonoNs();
    s->session->FinishStep(record);
    return Error();
  });
}

void hf_set_last_words(hf_session* s, const char* text) { s->session->SetLastWords(text); }
int hf_should_stop(const hf_session* s) { return static_cast<int>(s->session->ShouldStop()); }
int hf_attempt_is_current(const hf_session* s) { return s->session->AttemptIsCurrent() ? 1 : 0; }
uint64_t hf_save_requests(const hf_session* s) { return s->session->SaveRequests(); }

int hf_records_collectives(const hf_session* s) { return s->session->RecordsCollectives() ? 1 : 0; }

int hf_group(hf_session* s, const char* name, const uint32_t* ranks, uint32_t size,
             uint32_t* group) {
  return Guarded([&] { return s->session->AddGroup(name, ranks, size, group); });
}

uint64_t hf_collective_begin(hf_session* s, uint32_t group, uint32_t kind, uint32_t dtype,
                             int32_t peer, uint64_t bytes) {
  return s->session->BeginCollective({group, kind, dtype, peer, bytes});
}

void hf_collective_end(hf_session* s, uint64_t operation, uint32_t outcome) {
  using holdfast::rank::CollectiveOutcome;
  const bool known = outcome >= holdfast::rank::kFinished && outcome <= holdfast::rank::kEndUnseen;
  s->session->EndCollective(
      operation, known ? static_cast<CollectiveOutcome>(outcome) : holdfast::rank::kEndUnseen);
}

int hf_prepare_snapshots(hf_session* s, const hf_tensor* tensors, size_t count, uint32_t buffers) {
  return Guarded([&] {
    return s->session->WantArena(holdfast::ckpt::SnapshotBytes(Views(tensors, count)), buffers,
                                 static_cast<uint32_t>(count));
  });
}

uint64_t hf_restore_step(const hf_session* s) { return s->session->RestoreStep(); }

int hf_restore(hf_session* s, const hf_tensor* tensors, size_t count, uint64_t* samples) {
  return Guarded([&] { return s->session->Restore(Views(tensors, count), samples); });
}

int hf_restore_list(hf_session* s, const hf_tensor** tensors, size_t* count) {
  *tensors = nullptr;
  *count = 0;
  return Guarded([&] {
    const Error error = s->session->ListRestore(&s->listed);
    if (error) return error;
    s->list.clear();
    for (const holdfast::ckpt::TensorView& v : s->listed) {
      s->list.push_back({v.name.c_str(), v.dtype, static_cast<uint32_t>(v.global_shape.size()),
                         v.global_shape.data(), v.box_offset.data(), v.box_size.data(), v.replica,
                         v.data, v.bytes});
    }
    *tensors = s->list.data();
    *count = s->list.size();
    return error;
  });
}

int hf_snapshot_ready(const hf_session* s) { return s->session->SnapshotReady() ? 1 : 0; }

int hf_snapshot(hf_session* s, const hf_tensor* tensors, size_t count, uint64_t step,
                uint64_t samples, int persist, uint64_t* stall_ns) {
  uint64_t unused = 0;
  return Guarded([&] {
    return s->session->TakeSnapshot(Views(tensors, count), step, samples, persist != 0,
                                    stall_ns == nullptr ? &unused : stall_ns);
  });
}

void hf_skip_snapshot(hf_session* s) { s->session->CountSkippedSnapshot(); }

int hf_store_set(hf_session* s, const char* key, const void* value, size_t bytes) {
  return Guarded([&] {
    return s->session->StoreSet(key, std::string_view(static_cast<const char*>(value), bytes));
  });
}

int hf_store_get(hf_session* s, const char* key, int64_t timeout_ms, void* value, size_t* bytes) {
  return Guarded([&]() -> Error {
    std::string held;
    if (Error error = s->session->StoreGet(key, timeout_ms, &held)) return error;
    const size_t room = std::exchange(*bytes, held.size());
    if (held.size() > room)
      return {ERANGE, "store: the value has " + std::to_string(held.size()) + " bytes"};
    memcpy(value, held.data(), held.size());
    return {};
  });
}

int hf_store_add(hf_session* s, const char* key, int64_t delta, int64_t* sum) {
  return Guarded([&] { return s->session->StoreAdd(key, delta, sum); });
}

int hf_store_wait(hf_session* s, const char* const* keys, size_t count, int64_t timeout_ms) {
  return Guarded([&] {
    return s->session->StoreWait(std::vector<std::string>(keys, keys + count), timeout_ms);
  });
}

int hf_store_delete(hf_session* s, const char* key, int* existed) {
  return Guarded([&] {
    bool was = false;
    const Error error = s->session->StoreDelete(key, &was);
    if (!error && existed != nullptr) *existed = was ? 1 : 0;
    return error;
  });
}

}  // extern "C"
