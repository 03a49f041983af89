// SPDX-License-Identifier: Apache-2.0
#include "worker/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"

namespace holdfast::worker {
namespace {

using Target = std::variant<int64_t*, double*, bool*, std::string*>;

struct Field {
  const char* name;
  Target target;
  double min = 0, max = 0;  // numbers only
  bool required = false;
};

constexpr double kHuge = 1e15;
constexpr int64_t kConfigBytesMax = 1 << 20;

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, cost});
    }
  }
  return row[b.size()];
}

template <typename Names>
std::string Nearest(std::string_view wrong, const Names& names) {
  std::string best;
  size_t distance = std::numeric_limits<size_t>::max();
  for (const auto& name : names) {
    const size_t d = EditDistance(wrong, name);
    if (d < distance) distance = d, best = name;
  }
  return best;
}

class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)) {}

  absl::Status Error(const YAML::Node& node, const std::string& what) const {
    const int line = node.Mark().line;
    return absl::InvalidArgumentError(line >= 0 ? absl::StrCat(origin_, ":", line + 1, ": ", what)
                                                : absl::StrCat(origin_, ": ", what));
  }

  absl::Status Section(const YAML::Node& root, const std::string& section,
                       const std::vector<Field>& fields) const {
    const YAML::Node node = root[section];
    if (node.IsDefined() && !node.IsNull() && !node.IsMap())
      return Error(node, section + ": must hold fields, one a line");
    if (node.IsDefined() && node.IsMap()) {
      std::vector<std::string> names;
      for (const Field& field : fields) names.push_back(field.name);
      HF_RETURN_IF_ERROR(CheckKeys(node, section + ".", names));
    }
    for (const Field& field : fields) {
      const std::string name = absl::StrCat(section, ".", field.name);
      const YAML::Node value = node.IsDefined() && node.IsMap()
                                   ? node[field.name]
                                   : YAML::Node(YAML::NodeType::Undefined);
      if (!value.IsDefined()) {
        if (field.required)
          return Error(node.IsDefined() ? node : root, name + ": is missing; it has no default");
        continue;
      }
      HF_RETURN_IF_ERROR(Read(value, name, field));
    }
    return absl::OkStatus();
  }

  absl::Status CheckKeys(const YAML::Node& node, const std::string& prefix,
                         const std::vector<std::string>& names) const {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
      if (std::find(names.begin(), names.end(), key) == names.end()) {
        return Error(entry.first,
                     absl::StrCat(prefix, key, ": unknown field; the nearest known one is ", prefix,
                                  Nearest(key, names)));
      }
      if (!seen.insert(key).second)
        return Error(entry.first, absl::StrCat(prefix, key, ": is given twice"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Read(const YAML::Node& value, const std::string& name, const Field& field) const {
    if (!value.IsScalar()) return Error(value, name + ": must be a single value");
    const std::string text = value.Scalar();
    if (auto* out = std::get_if<int64_t*>(&field.target)) {
      if (!absl::SimpleAtoi(text, *out) || **out < field.min || **out > field.max) {
        return Error(value, absl::StrCat(name, ": ", text, " is not a whole number from ",
                                         static_cast<int64_t>(field.min), " to ",
                                         static_cast<int64_t>(field.max)));
      }
    } else if (auto* real = std::get_if<double*>(&field.target)) {
      if (!absl::SimpleAtod(text, *real) || !std::isfinite(**real) || **real < field.min ||
          **real > field.max) {
        return Error(value, absl::StrCat(name, ": ", text, " is not a number from ", field.min,
                                         " to ", field.max));
      }
    } else if (auto* flag = std::get_if<bool*>(&field.target)) {
      if (text != "true" && text != "false")
        return Error(value, absl::StrCat(name, ": ", text, " is neither true nor false"));
      **flag = text == "true";
    } else {
      *std::get<std::string*>(field.target) = text;
    }
    return absl::OkStatus();
  }

  std::string origin_;
};

std::vector<Field> ModelFields(ModelConfig* m) {
  return {
      {"vocab", &m->vocab, 2, 1 << 24, true},      {"dim", &m->dim, 2, 1 << 20, true},
      {"layers", &m->layers, 1, 4096, true},       {"heads", &m->heads, 1, 65536, true},
      {"kv_heads", &m->kv_heads, 1, 65536, false}, {"ffn", &m->ffn, 1, 1 << 22, true},
      {"seq_len", &m->seq_len, 1, 1 << 24, true},  {"rope_theta", &m->rope_theta, 1, kHuge, false},
      {"norm_eps", &m->norm_eps, 1e-12, 1, false}, {"tied", &m->tied, 0, 0, false}};
}

std::vector<Field> TrainFields(TrainConfig* t) {
  return {{"steps", &t->steps, 1, 1e12, true},
          {"seed", &t->seed, 0, 1e15, false},
          {"micro_batch", &t->micro_batch, 1, 65536, false},
          {"accumulate", &t->accumulate, 1, 65536, false},
          {"threads", &t->threads, 1, 1024, false}};
}

std::vector<Field> OptimizerFields(OptimizerConfig* o) {
  return {{"lr", &o->lr, 0, 100, false},
          {"min_lr", &o->min_lr, 0, 100, false},
          {"warmup_steps", &o->warmup_steps, 0, 1e12, false},
          {"beta1", &o->beta1, 0, 0.999999, false},
          {"beta2", &o->beta2, 0, 0.999999, false},
          {"eps", &o->eps, 1e-30, 1, false},
          {"weight_decay", &o->weight_decay, 0, 100, false},
          {"clip_norm", &o->clip_norm, 0, 1e9, false}};
}

// Checks that relate fields to each other.
absl::Status CheckContradictions(const Config& c, const std::string& origin) {
  const auto fail = [&](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", parts...));
  };
  const ModelConfig& m = c.model;
  if (m.dim % m.heads != 0)
    return fail("model.dim: ", m.dim, " is not a multiple of model.heads, ", m.heads);
  if (m.head_dim() % 2 != 0)
    return fail("model.dim: dim / heads is ", m.head_dim(),
                ", which must be even (rotary embedding turns pairs)");
  if (m.heads % m.kv_heads != 0)
    return fail("model.kv_heads: ", m.kv_heads, " does not divide model.heads, ", m.heads);
  const struct {
    const char* name;
    int64_t value;
  } split[] = {{"model.heads", m.heads},
               {"model.kv_heads", m.kv_heads},
               {"model.ffn", m.ffn},
               {"model.vocab", m.vocab}};
  for (const auto& part : split) {
    if (part.value % c.parallel.tp != 0) {
      return fail("parallel.tp: ", c.parallel.tp, " does not divide ", part.name, ", ", part.value);
    }
  }
  if (c.optimizer.warmup_steps > c.train.steps) {
    return fail("optimizer.warmup_steps: ", c.optimizer.warmup_steps, " is more than train.steps, ",
                c.train.steps);
  }
  if (c.optimizer.min_lr > c.optimizer.lr)
    return fail("optimizer.min_lr: ", c.optimizer.min_lr, " is more than optimizer.lr, ",
                c.optimizer.lr);
  if (c.data.kind != "tokens" && c.data.kind != "synthetic") {
    return fail("data.kind: ", c.data.kind, " is neither tokens nor synthetic");
  }
  if (c.data.kind == "tokens" && c.data.prefix.empty()) {
    return fail(
        "data.prefix: is missing; name the files that `holdfast data build --out PREFIX` wrote");
  }
  if (c.data.kind == "synthetic" && !c.data.prefix.empty())
    return fail("data.prefix: synthetic data reads no file; remove it");
  return absl::OkStatus();
}

absl::StatusOr<Config> ParseTree(const YAML::Node& root, const std::string& origin) {
  const Reader reader(origin);
  if (!root.IsMap())
    return reader.Error(root, "must hold the sections model, data, train, optimizer and parallel");
  Config config;
  HF_RETURN_IF_ERROR(
      reader.CheckKeys(root, "", {"model", "data", "train", "optimizer", "parallel"}));
  HF_RETURN_IF_ERROR(reader.Section(root, "model", ModelFields(&config.model)));
  HF_RETURN_IF_ERROR(
      reader.Section(root, "data", {{"kind", &config.data.kind}, {"prefix", &config.data.prefix}}));
  HF_RETURN_IF_ERROR(reader.Section(root, "train", TrainFields(&config.train)));
  HF_RETURN_IF_ERROR(reader.Section(root, "optimizer", OptimizerFields(&config.optimizer)));
  HF_RETURN_IF_ERROR(reader.Section(root, "parallel",
                                    {{"dp", &config.parallel.dp, 1, 65536, false},
                                     {"tp", &config.parallel.tp, 1, 65536, false},
                                     {"timeout_s", &config.parallel.timeout_s, 1, 86'400, false}}));
  if (config.model.kv_heads == 0) config.model.kv_heads = config.model.heads;
  HF_RETURN_IF_ERROR(CheckContradictions(config, origin));
  const size_t slash = origin.rfind('/');
  if (!config.data.prefix.empty() && config.data.prefix[0] != '/' && slash != std::string::npos) {
    config.data.prefix = JoinPath(origin.substr(0, slash), config.data.prefix);
  }
  return config;
}

}  // namespace

absl::StatusOr<Config> ParseConfig(std::string_view yaml, const std::string& origin) {
  try {
    return ParseTree(YAML::Load(std::string(yaml)), origin);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ":", e.mark.line + 1, ": not valid YAML: ", e.msg));
  }
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  HF_ASSIGN_OR_RETURN(auto file, PosixFileSystem()->OpenForRead(path));
  HF_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  if (bytes > kConfigBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes, " bytes; a configuration has at most 1 MiB"));
  std::string text(bytes, '\0');
  HF_ASSIGN_OR_RETURN(const size_t got, file->ReadAt(0, text.data(), text.size()));
  text.resize(got);
  return ParseConfig(text, path);
}

absl::Status ResolveRanks(Config* config, int64_t ranks) {
  ParallelConfig& p = config->parallel;
  if (ranks < 1)
    return absl::InvalidArgumentError(absl::StrCat("ranks: ", ranks, " must be at least 1"));
  if (p.dp == 0 && ranks % p.tp == 0) p.dp = ranks / p.tp;
  if (p.dp * p.tp != ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel: dp ", p.dp == 0 ? "?" : absl::StrCat(p.dp), " x tp ", p.tp,
        " does not make the ", ranks,
        " ranks of the job; change parallel.dp, parallel.tp or the job's nodes and gpus_per_node"));
  }
  return absl::OkStatus();
}

}  // namespace holdfast::worker
