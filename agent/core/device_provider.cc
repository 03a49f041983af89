// SPDX-License-Identifier: Apache-2.0
#include "agent/core/device_provider.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace holdfast::agent {
namespace {

using nlohmann::json;

absl::StatusOr<v1::Device> ParseDevice(const json& entry, size_t index) {
  const std::string where = absl::StrCat("devices[", index, "]");
  if (!entry.is_object()) return absl::InvalidArgumentError(absl::StrCat(where, ": not an object"));
  v1::Device device;
  device.set_index(static_cast<uint32_t>(index));
  device.set_kind("simulated");
  device.set_healthy(true);
  for (const auto& [key, value] : entry.items()) {
    const std::string field = absl::StrCat(where, ".", key);
    if ((key == "id" || key == "kind" || key == "reason") && value.is_string()) {
      const std::string text = value.get<std::string>();
      if (key == "id") device.set_id(text);
      if (key == "kind") device.set_kind(text);
      if (key == "reason") device.set_reason(text);
    } else if (key == "memory_bytes" && value.is_number_unsigned()) {
      device.set_memory_bytes(value.get<uint64_t>());
    } else if (key == "healthy" && value.is_boolean()) {
      device.set_healthy(value.get<bool>());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": ", value.dump(),
                       " is not allowed; fields are id, kind, reason (text), memory_bytes (whole "
                       "number), healthy (true or false)"));
    }
  }
  if (!IsValidName(device.id())) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ".id: '", device.id(),
                     "' is not a name of 1 to 63 letters, digits, '.', '_' or '-', the "
                     "first a letter or digit"));
  }
  return device;
}

struct FileStamp {
  int64_t mtime_ns = -1;
  int64_t size = -1;
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};

class SimulatedDevices final : public DeviceProvider {
 public:
  explicit SimulatedDevices(std::string path) : path_(std::move(path)) {}
  bool simulated() const override { return true; }
  const std::vector<v1::Device>& devices() const override { return devices_; }

  absl::StatusOr<bool> Refresh() override {
    const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0)
      return ErrnoStatus(errno, absl::StrCat("device file ", path_));
    const FileStamp stamp{info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_size,
                          info.st_ino};
    if (stamp == stamp_) return false;
    if (info.st_size > kDeviceFileBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": ", info.st_size, " bytes; at most ", kDeviceFileBytesMax));
    }
    std::string text(static_cast<size_t>(info.st_size), '\0');
    const ssize_t got = ::pread(fd.get(), text.data(), text.size(), 0);
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path_));
    text.resize(static_cast<size_t>(got));
    absl::StatusOr<std::vector<v1::Device>> parsed = ParseSimulatedDevices(text);
    if (!parsed.ok())
      return Annotate(parsed.status(),
                      path_);  // the stamp stays old: said again until it is repaired
    stamp_ = stamp;
    if (Same(*parsed)) return false;
    devices_ = *std::move(parsed);
    return true;
  }

 private:
  bool Same(const std::vector<v1::Device>& other) const {
    if (other.size() != devices_.size()) return false;
    for (size_t i = 0; i < other.size(); ++i) {
      if (other[i].SerializeAsString() != devices_[i].SerializeAsString()) return false;
    }
    return true;
  }

  const std::string path_;
  FileStamp stamp_;
  std::vector<v1::Device> devices_;
};

class NoDevices final : public DeviceProvider {
 public:
  bool simulated() const override { return false; }
  absl::StatusOr<bool> Refresh() override { return false; }
  const std::vector<v1::Device>& devices() const override { return none_; }

 private:
  const std::vector<v1::Device> none_ = {};
};

}  // namespace

absl::StatusOr<std::vector<v1::Device>> ParseSimulatedDevices(const std::string& text) {
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded())
    return absl::InvalidArgumentError("not JSON (cut short or malformed)");
  if (!document.is_object() || !document.contains("devices") || !document["devices"].is_array() ||
      document.size() != 1) {
    return absl::InvalidArgumentError("expected one object with one field \"devices\", a list");
  }
  const json& list = document["devices"];
  if (list.size() > kDevicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("devices: ", list.size(), " entries; at most ", kDevicesMax));
  }
  std::vector<v1::Device> devices;
  std::set<std::string> ids;
  for (size_t i = 0; i < list.size(); ++i) {
    HF_ASSIGN_OR_RETURN(v1::Device device, ParseDevice(list[i], i));
    if (!ids.insert(device.id()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("devices[", i, "].id: '", device.id(), "' is there twice"));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<DeviceProvider>> MakeDeviceProvider(const std::string& description) {
  constexpr char kSimulated[] = "simulated:";
  if (description == "none") return std::unique_ptr<DeviceProvider>(std::make_unique<NoDevices>());
  if (description.rfind(kSimulated, 0) == 0 && description.size() > sizeof kSimulated - 1) {
    auto devices = std::make_unique<SimulatedDevices>(description.substr(sizeof kSimulated - 1));
    HF_RETURN_IF_ERROR(devices->Refresh().status());
    return std::unique_ptr<DeviceProvider>(std::move(devices));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--devices: '", description, "' does not exist in this version; use simulated:FILE or none"));
}

}  // namespace holdfast::agent
