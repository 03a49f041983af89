// SPDX-License-Identifier: Apache-2.0
// Which devices a node has and how they are: behind an interface, so that jobs, placement and tests
// know no vendor.
#ifndef HOLDFAST_AGENT_CORE_DEVICE_PROVIDER_H_
#define HOLDFAST_AGENT_CORE_DEVICE_PROVIDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "holdfast/v1/common.pb.h"

namespace holdfast::agent {

inline constexpr size_t kDevicesMax = 64;
inline constexpr int64_t kDeviceFileBytesMax = 1 << 20;

// Threads: one.
class DeviceProvider {
 public:
  virtual ~DeviceProvider() = default;
  virtual bool simulated() const = 0;
  // Looks again. True when the devices differ from what they were. An error leaves the last good
  // ones in place.
  virtual absl::StatusOr<bool> Refresh() = 0;
  virtual const std::vector<v1::Device>& devices() const = 0;
};

// "none", or "simulated:FILE" (JSON, read again whenever it changes; the first reading must
// succeed). Anything else is INVALID_ARGUMENT listing what exists.
absl::StatusOr<std::unique_ptr<DeviceProvider>> MakeDeviceProvider(const std::string& description);

// {"devices":[{"id":"n0-gpu0","kind":"simulated","memory_bytes":85899345920,"healthy":true,"reason":""},
// ...]}. Every error names the entry and the field.
absl::StatusOr<std::vector<v1::Device>> ParseSimulatedDevices(const std::string& text);

}  // namespace holdfast::agent

#endif  // HOLDFAST_AGENT_CORE_DEVICE_PROVIDER_H_
