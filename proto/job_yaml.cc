// SPDX-License-Identifier: Apache-2.0
// ParseJobYaml: fields by protobuf reflection, so that a field of JobSpec cannot be forgotten here.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/status.h"
#include "proto/job_fields.h"
#include "proto/job_spec.h"
#include "proto/modes.h"
#include "proto/text.h"

namespace holdfast::proto {
namespace {

using google::protobuf::FieldDescriptor;

constexpr char kBoolAllowed[] = "true or false";
constexpr char kTextAllowed[] = "a text that is not empty";
constexpr char kFenceAllowed[] = "one of commit, witness";
constexpr char kCommandAllowed[] =
    "a list of arguments or a command line, such as [python, train.py]";

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Who runs a job comes from who submits it, never from a file; has_* belong to the wire.
bool IsFileField(std::string_view name) {
  return name != "user" && name != "uid" && name != "gid" && name != "groups" &&
         !absl::StartsWith(View(name), "has_");
}

std::vector<std::string> FileFields() {
  std::vector<std::string> names;
  const auto* descriptor = v1::JobSpec::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    if (IsFileField(descriptor->field(i)->name())) names.push_back(descriptor->field(i)->name());
  }
  return names;
}

std::string Literal(const YAML::Node& node) {
  if (node.IsNull()) return "an empty value";
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  int64_t number = 0;
  if (absl::SimpleAtoi(node.Scalar(), &number)) return node.Scalar();
  constexpr size_t kShownBytesMax = 120;
  return absl::StrCat("\"", node.Scalar().substr(0, kShownBytesMax),
                      node.Scalar().size() > kShownBytesMax ? "..." : "", "\"");
}

// One document being read; builds the errors.
class JobReader {
 public:
  JobReader(std::string_view origin, v1::JobSpec* spec) : origin_(origin), spec_(spec) {}

  absl::Status Read(const YAML::Node& root) {
    if (!root.IsMap())
      return At(root, "", "a job is a mapping of fields to values, such as \"nodes: 2\"");
    std::set<std::string> seen;
    for (const auto& entry : root) {
      if (!entry.first.IsScalar()) return At(entry.first, "", "a field's name must be plain text");
      const std::string& name = entry.first.Scalar();
      if (!seen.insert(name).second) return At(entry.first, name, "is given twice");
      HF_RETURN_IF_ERROR(ReadField(entry.first, name, entry.second));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status At(const YAML::Node& node, std::string_view field, std::string_view what) const {
    const int line = node.Mark().line >= 0 ? node.Mark().line + 1 : 1;
    return absl::InvalidArgumentError(absl::StrCat(View(origin_), ":", line, ": ", View(field),
                                                   field.empty() ? "" : ": ", View(what)));
  }

  absl::Status NotAllowed(const YAML::Node& node, std::string_view field,
                          std::string_view allowed) const {
    return At(node, field, absl::StrCat(Literal(node), " is not ", View(allowed)));
  }

  absl::Status ReadField(const YAML::Node& key, const std::string& name, const YAML::Node& value) {
    const FieldDescriptor* field = v1::JobSpec::descriptor()->FindFieldByName(name);
    if (field == nullptr) {
      const std::string nearest = NearestName(name, FileFields());
      return At(key, name,
                nearest.empty()
                    ? absl::StrCat("unknown field; known are ", absl::StrJoin(FileFields(), ", "))
                    : absl::StrCat("unknown field; did you mean ", nearest, "?"));
    }
    if (!IsFileField(name))
      return At(key, name, "comes from who submits the job and cannot be set in a file; remove it");
    // yaml-cpp places an empty value on the line where it noticed; the field's own line is what a
    // person looks for.
    if (value.IsNull() && name != "environment")
      return At(key, name, absl::StrCat("an empty value is not ", AllowedOf(*field)));
    if (name == "command") return ReadCommand(value);
    if (name == "environment") return ReadEnvironment(value);
    if (name == "fence") return ReadFence(value);
    if (name == "modes") return ReadModes(value);
    if (name == "cpus_per_rank")
      return At(key, name, "pinning is not part of this version; remove the field");
    if (FindNumberField(name) != nullptr) return ReadNumber(*FindNumberField(name), *field, value);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return ReadBool(*field, value);
    return ReadString(*field, value);
  }

  static std::string AllowedOf(const FieldDescriptor& field) {
    if (FindNumberField(field.name()) != nullptr) return Allowed(*FindNumberField(field.name()));
    if (field.name() == "command") return kCommandAllowed;
    if (field.name() == "fence") return kFenceAllowed;
    if (field.name() == "modes") return kModesAllowed;
    return field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL ? kBoolAllowed : kTextAllowed;
  }

  absl::Status ReadNumber(const NumberField& limits, const FieldDescriptor& field,
                          const YAML::Node& node) {
    int64_t value = 0;
    if (!node.IsScalar() || !ToNumber(limits.kind, node.Scalar(), &value) || value < limits.low ||
        value > limits.high) {
      return NotAllowed(node, limits.name, Allowed(limits));
    }
    const auto* reflection = spec_->GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      reflection->SetUInt64(spec_, &field, static_cast<uint64_t>(value));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      reflection->SetInt32(spec_, &field, static_cast<int32_t>(value));
    } else {
      reflection->SetUInt32(spec_, &field, static_cast<uint32_t>(value));
    }
    if (std::string_view(limits.name) == "restarts_max") spec_->set_has_restarts_max(true);
    return absl::OkStatus();
  }

  static bool ToNumber(NumberKind kind, const std::string& text, int64_t* out) {
    if (kind == NumberKind::kCount) return absl::SimpleAtoi(text, out);
    if (kind == NumberKind::kBytes) {
      const auto bytes = ParseBytes(text);
      if (!bytes.ok() || *bytes > INT64_MAX) return false;
      *out = static_cast<int64_t>(*bytes);
      return true;
    }
    const int64_t unit_ms = kind == NumberKind::kDurationS ? 1000 : 1;
    const auto ms = ParseDurationMs(text, unit_ms);
    if (!ms.ok() || *ms % unit_ms != 0) return false;
    *out = *ms / unit_ms;
    return true;
  }

  absl::Status ReadBool(const FieldDescriptor& field, const YAML::Node& node) {
    bool value = false;
    if (!node.IsScalar() || !YAML::convert<bool>::decode(node, value))
      return NotAllowed(node, field.name(), kBoolAllowed);
    spec_->GetReflection()->SetBool(spec_, &field, value);
    if (field.name() == "requeue") spec_->set_has_requeue(true);
    return absl::OkStatus();
  }

  absl::Status ReadString(const FieldDescriptor& field, const YAML::Node& node) {
    if (!node.IsScalar() || node.Scalar().empty())
      return NotAllowed(node, field.name(), kTextAllowed);
    spec_->GetReflection()->SetString(spec_, &field, node.Scalar());
    return absl::OkStatus();
  }

  absl::Status ReadFence(const YAML::Node& node) {
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    if (text != "commit" && text != "witness") return NotAllowed(node, "fence", kFenceAllowed);
    spec_->set_fence(text == "commit" ? v1::FENCE_MODE_COMMIT : v1::FENCE_MODE_WITNESS);
    return absl::OkStatus();
  }

  // The text of --modes, or a mapping of causes to modes.
  absl::Status ReadModes(const YAML::Node& node) {
    std::string text = node.IsScalar() ? node.Scalar() : "";
    if (node.IsMap()) {
      for (const auto& entry : node) {
        const std::string mode = entry.second.IsScalar() ? entry.second.Scalar() : "";
        const std::string cause = entry.first.IsScalar() ? entry.first.Scalar() : "";
        absl::StrAppend(&text, text.empty() ? "" : ",", cause, "=", mode);
      }
    }
    const auto modes = ParseModes(text);
    if (!modes.ok()) return NotAllowed(node, "modes", kModesAllowed);
    spec_->mutable_modes()->insert(modes->begin(), modes->end());
    return absl::OkStatus();
  }

  absl::Status ReadCommand(const YAML::Node& node) {
    if (node.IsScalar()) {
      auto words = SplitCommand(node.Scalar());
      if (!words.ok()) return At(node, "command", std::string(words.status().message()));
      for (std::string& word : *words) spec_->add_command(std::move(word));
    } else if (node.IsSequence()) {
      for (const auto& word : node) {
        if (!word.IsScalar()) return NotAllowed(word, "command", "a text");
        spec_->add_command(word.Scalar());
      }
    }
    if (spec_->command_size() == 0) {
      return NotAllowed(node, "command", kCommandAllowed);
    }
    return absl::OkStatus();
  }

  absl::Status ReadEnvironment(const YAML::Node& node) {
    if (!node.IsMap())
      return NotAllowed(node, "environment",
                        "a mapping of names to values, such as {OMP_NUM_THREADS: 1}");
    for (const auto& entry : node) {
      if (!entry.first.IsScalar() || !IsEnvironmentName(entry.first.Scalar())) {
        return NotAllowed(entry.first, "environment", "a variable name ([A-Za-z_][A-Za-z0-9_]*)");
      }
      const std::string& name = entry.first.Scalar();
      const std::string field = absl::StrCat("environment.", name);
      if (!entry.second.IsScalar() && !entry.second.IsNull())
        return NotAllowed(entry.second, field, "a text");
      if (spec_->environment().contains(name)) return At(entry.first, field, "is given twice");
      (*spec_->mutable_environment())[name] = entry.second.IsNull() ? "" : entry.second.Scalar();
    }
    return absl::OkStatus();
  }

  const std::string_view origin_;
  v1::JobSpec* const spec_;
};

}  // namespace

absl::StatusOr<v1::JobSpec> ParseJobYaml(std::string_view text, std::string_view origin) {
  if (static_cast<int64_t>(text.size()) > kSpecBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        View(origin), ": ", text.size(), " bytes are more than the limit of ", kSpecBytesMax));
  }
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(std::string(text));
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat(View(origin), ":", e.mark.line + 1, ": not YAML: ", e.msg));
  }
  if (documents.empty() || documents[0].IsNull()) {
    return absl::InvalidArgumentError(absl::StrCat(View(origin), ":1: the file holds no job"));
  }
  if (documents.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(View(origin), ":", documents[1].Mark().line + 1,
                                                   ": a second document; a file holds one job"));
  }
  v1::JobSpec spec;
  JobReader reader(origin, &spec);
  try {
    HF_RETURN_IF_ERROR(reader.Read(documents[0]));
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat(View(origin), ":", e.mark.line + 1, ": ", e.msg));
  }
  return spec;
}

}  // namespace holdfast::proto
