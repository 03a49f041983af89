/* SPDX-License-Identifier: Apache-2.0 */
/* libholdfast: what a training program tells Holdfast and asks of it. Plain C; links nothing but
 * libc.
 *
 * Without HOLDFAST_SOCKET in the environment hf_init gives a detached session: marks and snapshots
 * do nothing, hf_should_stop is 0, hf_store_* return ENOTCONN. So a program runs the same without
 * Holdfast.
 *
 * Functions that can fail return 0 or an errno; hf_last_error() says more about the newest failure
 * in this thread. Threads: hf_store_*, hf_group and hf_collective_* from any thread; everything
 * else from one thread. Times: steps count from 1, durations in ms or ns as named.
 *
 *   hf_session* hf;
 *   if (hf_init(&hf, 10000)) die(hf_last_error());
 *   hf_prepare_snapshots(hf, tensors, n, 2);
 *   uint64_t step = 0, samples = 0;
 *   if (hf_restore_step(hf)) { hf_restore(hf, tensors, n, &samples); step = hf_restore_step(hf); }
 *   while (step < last && hf_attempt_is_current(hf)) {
 *     train(++step);                                  // ends with a collective: minimum of
 * hf_snapshot_ready over the ranks if (all_ready) hf_snapshot(hf, tensors, n, step, samples,
 * persist, NULL); hf_finish_step(hf, &record); if (hf_should_stop(hf)) break;                  //
 * after a last snapshot with persist
 *   }
 */
#ifndef HOLDFAST_CLIENT_HOLDFAST_H_
#define HOLDFAST_CLIENT_HOLDFAST_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hf_session hf_session;

/* One box of one global tensor: `dims` entries in each array, `bytes` contiguous bytes at `data`.
 * dtype: 1 f32, 2 f64, 3 f16, 4 bf16, 5 i8, 6 u8, 7 i16, 8 i32, 9 i64, 10 bool, 11 f8_e4m3, 12
 * f8_e5m2. replica 0 is the copy that is written to the store. */
typedef struct {
  const char* name;
  uint32_t dtype;
  uint32_t dims;
  const uint64_t* global_shape;
  const uint64_t* box_offset;
  const uint64_t* box_size;
  uint32_t replica;
  void* data;
  uint64_t bytes;
} hf_tensor;

typedef struct {
  uint64_t step;
  uint64_t samples; /* consumed since the start of the job */
  double loss;
  double grad_norm;
  double lr;
  double tokens_per_s;
} hf_step;

/* Phases: 1 init, 2 communicators, 3 restore, 4 first step, 5 data, 6 forward, 7 backward, 8
 * reduce, 9 optimizer, 10 snapshot, 11 evaluation, 12 teardown, 13 done. */

int hf_init(hf_session** out, int64_t timeout_ms);
void hf_close(hf_session* session);
const char* hf_last_error(void);

int hf_detached(const hf_session* session);
uint64_t hf_job(const hf_session* session);
uint64_t hf_attempt(const hf_session* session);
uint32_t hf_rank(const hf_session* session);
uint32_t hf_world_size(const hf_session* session);

void hf_enter_phase(hf_session* session, uint32_t phase, uint64_t step, uint32_t micro_batch);
void hf_finish_step(hf_session* session, const hf_step* step);
void hf_set_last_words(hf_session* session, const char* text);
int hf_should_stop(const hf_session* session); /* 0, or why: 1 cancel, 2 preempt, 3 drain, 4 time
                                                  limit, 5 recovery */
int hf_attempt_is_current(const hf_session* session);
/* Grows each time somebody asks for a checkpoint now (`holdfast save`). */
uint64_t hf_save_requests(const hf_session* session);

/* Collective operations, so that a hang can be explained: which operation a rank is in, and which
 * rank has not begun the one that the others wait in.
 *
 * hf_records_collectives: 1 when there is a place for them; 0 (detached, or an agent that is older
 * than this library) and the other calls do nothing. hf_group: once for each process group that is
 * made, the same name and ranks (of the job, in the group's order) on all of them; NULL: ranks not
 * known. *group is then for hf_collective_begin; 0 is no group, and its operations are not
 * recorded. ENOSPC: too many groups in this process.
 *
 * kind: 0 other, 1 all_reduce, 2 all_gather, 3 reduce_scatter, 4 broadcast, 5 all_to_all, 6 send, 7
 * recv, 8 barrier, 9 reduce, 10 gather, 11 scatter. dtype as in hf_tensor, 0: none. peer: root,
 * destination or source in the group, -1: none. What hf_collective_begin gives goes to
 * hf_collective_end, once, with outcome 1 finished, 2 failed, 3 ended unseen. */
int hf_records_collectives(const hf_session* session);
int hf_group(hf_session* session, const char* name, const uint32_t* ranks, uint32_t size,
             uint32_t* group);
uint64_t hf_collective_begin(hf_session* session, uint32_t group, uint32_t kind, uint32_t dtype,
                             int32_t peer, uint64_t bytes);
void hf_collective_end(hf_session* session, uint64_t operation, uint32_t outcome);

int hf_prepare_snapshots(hf_session* session, const hf_tensor* tensors, size_t count,
                         uint32_t buffers);
uint64_t hf_restore_step(const hf_session* session); /* 0: not from memory; see HOLDFAST_RESTORE */
int hf_restore(hf_session* session, const hf_tensor* tensors, size_t count, uint64_t* samples);
/* What the snapshot holds that this attempt starts from: names, types, shapes, boxes, replicas and
 * `data`, read-only bytes in the arena that nothing has verified before hf_restore returned 0.
 * ENOENT when there is none. Valid until the next call of it, hf_prepare_snapshots, hf_snapshot or
 * hf_close. */
int hf_restore_list(hf_session* session, const hf_tensor** tensors, size_t* count);
int hf_snapshot_ready(const hf_session* session);
int hf_snapshot(hf_session* session, const hf_tensor* tensors, size_t count, uint64_t step,
                uint64_t samples, int persist, uint64_t* stall_ns);
void hf_skip_snapshot(hf_session* session); /* counts one that was due, while not all were ready */

/* The rendezvous store of this attempt. Keys at most 1 KiB, values 60 KiB. */
int hf_store_set(hf_session* session, const char* key, const void* value, size_t bytes);
/* Waits for the key. *bytes: room in, length out; ERANGE when the room is too small. */
int hf_store_get(hf_session* session, const char* key, int64_t timeout_ms, void* value,
                 size_t* bytes);
int hf_store_add(hf_session* session, const char* key, int64_t delta, int64_t* sum);
int hf_store_wait(hf_session* session, const char* const* keys, size_t count, int64_t timeout_ms);
int hf_store_delete(hf_session* session, const char* key, int* existed);

#ifdef __cplusplus
}
#endif

#endif /* HOLDFAST_CLIENT_HOLDFAST_H_ */
