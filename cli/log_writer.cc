// SPDX-License-Identifier: Apache-2.0
#include "cli/log_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace holdfast::cli {
namespace {

constexpr size_t kOpenLineBytesMax =
    64 << 10;  // a longer line is shown in parts: nothing grows without a limit

}  // namespace

uint64_t LogPositions::Take(v1::LogChunk* chunk) {
  const Key key(chunk->rank(), chunk->attempt());
  const uint64_t begin = chunk->has_offset() ? chunk->offset() : received_[key];
  const uint64_t size = chunk->data().size();
  received_[key] = begin + size;
  const auto found = next_.find(key);
  const uint64_t next = found == next_.end() ? begin : found->second;
  next_[key] = std::max(next, begin + size);
  if (begin < next) {
    const uint64_t skip = std::min(next - begin, size);
    chunk->mutable_data()->erase(0, skip);
    chunk->set_offset(begin + skip);
    return 0;
  }
  return begin - next;
}

void LogPositions::FillResume(v1::ReadLogsRequest* request) const {
  for (const auto& [key, offset] : next_) {
    v1::LogPosition* position = request->add_resume();
    position->set_rank(key.first);
    position->set_attempt(key.second);
    position->set_offset(offset);
  }
}

std::string LogLines::Add(const v1::LogChunk& chunk) {
  if (!with_rank_) return chunk.data();
  std::string& open = open_[chunk.rank()];
  open += chunk.data();
  std::string out;
  size_t begin = 0;
  for (size_t end = open.find('\n'); end != std::string::npos; end = open.find('\n', begin)) {
    absl::StrAppend(&out, chunk.rank(), "| ", open.substr(begin, end - begin), "\n");
    begin = end + 1;
  }
  open.erase(0, begin);
  if (open.size() > kOpenLineBytesMax) {
    absl::StrAppend(&out, chunk.rank(), "| ", open, "\n");
    open.clear();
  }
  return out;
}

std::string LogLines::Flush() {
  std::string out;
  for (auto& [rank, open] : open_) {
    if (!open.empty()) absl::StrAppend(&out, rank, "| ", open, "\n");
    open.clear();
  }
  return out;
}

}  // namespace holdfast::cli
