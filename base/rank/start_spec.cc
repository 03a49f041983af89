// SPDX-License-Identifier: Apache-2.0
#include "base/rank/start_spec.h"

#include <charconv>
#include <limits>
#include <set>
#include <string_view>

namespace holdfast::rank {
namespace {

constexpr uint64_t kVersion = 1;

// ---- writing ----

class Encoder {
 public:
  void Add(std::string_view key, std::string_view value) {
    if (value.find('\0') != std::string_view::npos) bad_ = true;
    text_.append(key).append("=").append(value).push_back('\0');
  }
  void Add(std::string_view key, uint64_t value) {
    Add(key, std::string_view(std::to_string(value)));
  }
  std::string Take() { return bad_ ? std::string() : std::move(text_); }

 private:
  std::string text_;
  bool bad_ = false;
};

// ---- reading ----

bool ParseNumber(std::string_view text, uint64_t low, uint64_t high, uint64_t* out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end && !text.empty() && *out >= low && *out <= high;
}

bool ParseGroups(std::string_view text, std::vector<uint32_t>* out) {
  out->clear();
  while (!text.empty()) {
    const size_t comma = text.find(',');
    uint64_t group;
    if (!ParseNumber(text.substr(0, comma), 0, std::numeric_limits<uint32_t>::max() - 1, &group))
      return false;
    if (out->size() == kStartSpecEntriesMax) return false;
    out->push_back(static_cast<uint32_t>(group));
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
    if (text.empty()) return false;
  }
  return true;
}

bool IsAbsolute(std::string_view path) { return !path.empty() && path[0] == '/'; }

bool AddEntry(std::string_view value, std::vector<std::string>* out) {
  if (out->size() == kStartSpecEntriesMax) return false;
  out->emplace_back(value);
  return true;
}

bool AddEnv(std::string_view value, std::vector<std::string>* out) {
  const size_t equals = value.find('=');
  return equals != std::string_view::npos && equals > 0 && AddEntry(value, out);
}

class Decoder {
 public:
  explicit Decoder(StartSpec* out) : out_(out) {}

  bool Take(std::string_view key, std::string_view value) {
    if (key == "rank") return OpenRank(value);
    if (!out_->ranks.empty()) return TakeOfRank(key, value, &out_->ranks.back());
    return TakeCommon(key, value);
  }

  // Empty when the whole is complete.
  std::string Missing() const {
    if (!versioned_) return "version: missing; expected version=1 as the first key";
    if (out_->job == 0) return "job: missing";
    if (out_->attempt == 0) return "attempt: missing";
    if (out_->world_size == 0) return "world_size: missing";
    if (out_->log_dir.empty()) return "log_dir: missing";
    if (out_->ranks.empty()) return "rank: missing; at least one rank block is needed";
    for (const RankSpec& r : out_->ranks) {
      if (r.rank >= out_->world_size) {
        return "rank=" + std::to_string(r.rank) +
               ": must be below world_size=" + std::to_string(out_->world_size);
      }
      if (r.args.empty()) return "arg: missing in the block of rank=" + std::to_string(r.rank);
    }
    return "";
  }

 private:
  bool Number(std::string_view text, uint64_t low, uint64_t high, uint64_t* out) {
    return ParseNumber(text, low, high, out);
  }
  bool Number32(std::string_view text, uint64_t low, uint32_t* out) {
    uint64_t wide;
    if (!ParseNumber(text, low, std::numeric_limits<uint32_t>::max() - 1, &wide)) return false;
    *out = static_cast<uint32_t>(wide);
    return true;
  }

  bool OpenRank(std::string_view value) {
    RankSpec spec;
    if (!Number32(value, 0, &spec.rank) || out_->ranks.size() == kStartSpecRanksMax) return false;
    if (!seen_.insert(spec.rank).second) return false;
    out_->ranks.push_back(std::move(spec));
    return true;
  }

  bool TakeOfRank(std::string_view key, std::string_view value, RankSpec* rank) {
    if (key == "local") return Number32(value, 0, &rank->local);
    if (key == "env") return AddEnv(value, &rank->env);
    if (key == "arg") return AddEntry(value, &rank->args);
    return false;
  }

  bool TakeCommon(std::string_view key, std::string_view value) {
    constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max() - 1;
    uint64_t number;
    if (key == "version") {
      versioned_ = Number(value, kVersion, kVersion, &number);
      return versioned_;
    }
    if (key == "job") return Number(value, 1, kAny, &out_->job);
    if (key == "attempt") return Number(value, 1, kAny, &out_->attempt);
    if (key == "world_size") return Number32(value, 1, &out_->world_size);
    if (key == "uid") return Number32(value, 0, &out_->uid);
    if (key == "gid") return Number32(value, 0, &out_->gid);
    if (key == "groups") return ParseGroups(value, &out_->groups);
    if (key == "log_limit_bytes") return Number(value, 1, kAny, &out_->log_limit_bytes);
    if (key == "env") return AddEnv(value, &out_->env);
    if (key == "service") return AddEntry(value, &out_->service);
    if (key == "standby") return AddEntry(value, &out_->standby);
    if (key == "standby_after_ms") return Number(value, 0, kAny, &out_->standby_after_ms);
    if (key == "cwd" || key == "log_dir") {
      (key == "cwd" ? out_->cwd : out_->log_dir) = std::string(value);
      return IsAbsolute(value);
    }
    return false;
  }

  StartSpec* out_;
  std::set<uint32_t> seen_;
  bool versioned_ = false;
};

// For messages: short and printable.
std::string Shown(std::string_view text) {
  std::string shown;
  for (char c : text.substr(0, 80)) shown.push_back(c >= ' ' && c <= '~' ? c : '?');
  return shown;
}

}  // namespace

std::string EncodeStartSpec(const StartSpec& spec) {
  Encoder e;
  e.Add("version", kVersion);
  e.Add("job", spec.job);
  e.Add("attempt", spec.attempt);
  e.Add("world_size", spec.world_size);
  e.Add("cwd", spec.cwd);
  e.Add("uid", spec.uid);
  e.Add("gid", spec.gid);
  std::string groups;
  for (uint32_t group : spec.groups) groups += (groups.empty() ? "" : ",") + std::to_string(group);
  e.Add("groups", groups);
  e.Add("log_limit_bytes", spec.log_limit_bytes);
  e.Add("log_dir", spec.log_dir);
  for (const std::string& arg : spec.service) e.Add("service", arg);
  for (const std::string& arg : spec.standby) e.Add("standby", arg);
  if (!spec.standby.empty()) e.Add("standby_after_ms", spec.standby_after_ms);
  for (const std::string& entry : spec.env) e.Add("env", entry);
  for (const RankSpec& r : spec.ranks) {
    e.Add("rank", r.rank);
    e.Add("local", r.local);
    for (const std::string& entry : r.env) e.Add("env", entry);
    for (const std::string& arg : r.args) e.Add("arg", arg);
  }
  return e.Take();
}

std::string EncodeStandbyStart(const std::vector<std::string>& env, const std::string& cwd) {
  Encoder e;
  for (const std::string& entry : env) e.Add("env", entry);
  e.Add("cwd", cwd);
  return e.Take();
}

bool DecodeStartSpec(const std::string& text, StartSpec* out, std::string* reason) {
  *out = StartSpec();
  if (text.size() > kStartSpecBytesMax) {
    *reason = "start spec: " + std::to_string(text.size()) + " bytes, at most " +
              std::to_string(kStartSpecBytesMax);
    return false;
  }
  Decoder decoder(out);
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find('\0');
    const std::string_view entry = rest.substr(0, end);
    const size_t equals = entry.find('=');
    if (end == std::string_view::npos || equals == std::string_view::npos) {
      *reason = "start spec: '" + Shown(entry) + "' is not a NUL-terminated key=value";
      return false;
    }
    if (!decoder.Take(entry.substr(0, equals), entry.substr(equals + 1))) {
      *reason = "start spec: '" + Shown(entry) +
                "': unknown key here, a repeated rank, too many, or a value out of range";
      return false;
    }
    rest.remove_prefix(end + 1);
  }
  *reason = decoder.Missing();
  if (!reason->empty()) *reason = "start spec: " + *reason;
  return reason->empty();
}

}  // namespace holdfast::rank
