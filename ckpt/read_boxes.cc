// SPDX-License-Identifier: Apache-2.0
#include "ckpt/read_boxes.h"

#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace holdfast::ckpt {
namespace {

using nlohmann::json;
using Tensors = std::map<std::string, const TensorRecord*>;

absl::Status BadLine(size_t line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

// The numbers of one field; false when it is no list of them.
bool Numbers(const json& object, const char* field, std::vector<uint64_t>* out) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_array() || found->size() > rank::kDimsMax) return false;
  for (const json& number : *found) {
    if (!number.is_number_unsigned()) return false;
    out->push_back(number.get<uint64_t>());
  }
  return true;
}

bool Inside(const Box& box, const std::vector<uint64_t>& shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] > shape[d] || box.size[d] > shape[d] - box.offset[d]) return false;
  }
  return true;
}

absl::StatusOr<BoxRequest> ParseLine(const Tensors& tensors, size_t line, const std::string& text) {
  if (text.size() > kBoxRequestLineBytesMax)
    return BadLine(line, absl::StrCat("longer than ", kBoxRequestLineBytesMax, " bytes"));
  const json object = json::parse(text, nullptr, false);
  const auto name = object.is_object() ? object.find("tensor") : object.end();
  if (!object.is_object() || name == object.end() || !name->is_string())
    return BadLine(line, "not an object with a field \"tensor\" that names one");
  BoxRequest request;
  request.tensor = name->get<std::string>();
  const auto tensor = tensors.find(request.tensor);
  if (tensor == tensors.end()) {
    return absl::NotFoundError(
        absl::StrCat("line ", line, ": the checkpoint has no tensor '", request.tensor, "'"));
  }
  const TensorRecord& t = *tensor->second;
  if (!object.contains("offset") && !object.contains("size")) {
    request.box = {std::vector<uint64_t>(t.global_shape.size(), 0), t.global_shape};
  } else if (!Numbers(object, "offset", &request.box.offset) ||
             !Numbers(object, "size", &request.box.size)) {
    return BadLine(
        line, absl::StrCat("offset and size of '", request.tensor,
                           "' are not two lists of at most ", rank::kDimsMax, " whole numbers"));
  }
  if (!Inside(request.box, t.global_shape))
    return BadLine(line, absl::StrCat("the box asked for leaves tensor '", request.tensor, "'"));
  request.bytes = rank::DTypeBytes(t.dtype);
  for (const uint64_t n : request.box.size)
    request.bytes *= n;  // inside a tensor whose size is one
  return request;
}

}  // namespace

absl::StatusOr<std::vector<BoxRequest>> ParseBoxRequests(const CommitRecord& record,
                                                         std::istream& in) {
  Tensors tensors;
  for (const RankManifest& m : record.ranks) {
    for (const TensorRecord& t : m.tensors) tensors.emplace(t.name, &t);
  }
  std::vector<BoxRequest> requests;
  std::string text;
  for (size_t line = 1; std::getline(in, text); ++line) {
    if (requests.size() == kBoxRequestsMax)
      return BadLine(line, absl::StrCat("more than ", kBoxRequestsMax, " boxes"));
    HF_ASSIGN_OR_RETURN(BoxRequest request, ParseLine(tensors, line, text));
    requests.push_back(std::move(request));
  }
  return requests;
}

absl::Status WriteBoxes(Store* store, const CommitRecord& record,
                        const std::vector<BoxRequest>& requests, std::ostream& out) {
  uint64_t room = 0;
  std::unique_ptr<char[]> bytes;
  for (const BoxRequest& request : requests) {
    if (request.bytes > room) {
      bytes.reset();
      bytes.reset(new (std::nothrow) char[request.bytes]);
      if (bytes == nullptr) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "no memory for the ", request.bytes, " bytes of tensor '", request.tensor, "'"));
      }
      room = request.bytes;
    }
    HF_RETURN_IF_ERROR(store->ReadBox(record, request.tensor, request.box, bytes.get()));
    out.write(bytes.get(), static_cast<std::streamsize>(request.bytes));
    if (!out.flush()) return absl::UnavailableError("whoever asked for the bytes reads no more");
  }
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt
