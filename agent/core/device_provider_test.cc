// SPDX-License-Identifier: Apache-2.0
#include "agent/core/device_provider.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace holdfast::agent {
namespace {

constexpr char kTwo[] =
    R"({"devices":[{"id":"n0-gpu0","kind":"simulated","memory_bytes":85899345920,"healthy":true,"reason":""},)"
    R"({"id":"n0-gpu1"}]})";

class Devices : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "holdfast-devices-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  // As an injector should: a new file takes the place of the old one.
  void Write(const std::string& text) {
    std::ofstream(dir_ + "/new") << text;
    std::filesystem::rename(dir_ + "/new", dir_ + "/devices.json");
  }
  std::string Description() { return "simulated:" + dir_ + "/devices.json"; }
  std::string dir_;
};

TEST_F(Devices, ReadsAndFollowsTheFile) {
  Write(kTwo);
  absl::StatusOr<std::unique_ptr<DeviceProvider>> provider = MakeDeviceProvider(Description());
  ASSERT_TRUE(provider.ok()) << provider.status();
  ASSERT_EQ((*provider)->devices().size(), 2u);
  EXPECT_EQ((*provider)->devices()[0].memory_bytes(), 85899345920u);
  EXPECT_TRUE((*provider)->devices()[1].healthy());
  EXPECT_EQ((*provider)->devices()[1].index(), 1u);
  EXPECT_EQ((*provider)->Refresh().value(), false);
  Write(R"({"devices":[{"id":"n0-gpu0","healthy":false,"reason":"XID 79"},{"id":"n0-gpu1"}]})");
  EXPECT_EQ((*provider)->Refresh().value(), true);
  EXPECT_EQ((*provider)->devices()[0].reason(), "XID 79");
  EXPECT_FALSE((*provider)->devices()[0].healthy());
}

TEST_F(Devices, ABadFileLeavesTheLastGoodReading) {
  Write(kTwo);
  absl::StatusOr<std::unique_ptr<DeviceProvider>> provider = MakeDeviceProvider(Description());
  ASSERT_TRUE(provider.ok());
  Write(R"({"devices":[{"id":"n0-gp)");
  absl::StatusOr<bool> refreshed = (*provider)->Refresh();
  EXPECT_FALSE(refreshed.ok());
  EXPECT_NE(std::string(refreshed.status().message()).find("devices.json"), std::string::npos)
      << refreshed.status();
  EXPECT_FALSE((*provider)->Refresh().ok()) << "said until it is repaired";
  EXPECT_EQ((*provider)->devices().size(), 2u);
  std::filesystem::remove(dir_ + "/devices.json");
  EXPECT_FALSE((*provider)->Refresh().ok());
  EXPECT_EQ((*provider)->devices().size(), 2u);
  Write(R"({"devices":[]})");
  EXPECT_EQ((*provider)->Refresh().value(), true);
  EXPECT_TRUE((*provider)->devices().empty());
}

TEST_F(Devices, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "devices"},
      {R"({"devices":{}})", "devices"},
      {R"({"devices":[],"more":1})", "devices"},
      {R"({"devices":[7]})", "devices[0]"},
      {R"({"devices":[{"id":"a"},{"id":"a"}]})", "devices[1].id"},
      {R"({"devices":[{"id":"a b"}]})", "devices[0].id"},
      {R"({"devices":[{"kind":"simulated"}]})", "devices[0].id"},
      {R"({"devices":[{"id":"a","memory_bytes":-1}]})", "devices[0].memory_bytes"},
      {R"({"devices":[{"id":"a","healthy":"yes"}]})", "devices[0].healthy"},
      {R"({"devices":[{"id":"a","colour":"red"}]})", "devices[0].colour"},
  };
  for (const auto& [text, field] : cases) {
    const absl::Status status = ParseSimulatedDevices(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(status.message()).find(field), std::string::npos)
        << text << ": " << status;
  }
}

TEST_F(Devices, OnlyWhatExistsIsTaken) {
  EXPECT_TRUE(MakeDeviceProvider("none").value()->devices().empty());
  for (const char* bad : {"", "nvml", "simulated:", "Simulated:x"}) {
    const absl::Status status = MakeDeviceProvider(bad).status();
    EXPECT_NE(std::string(status.message()).find("simulated:FILE or none"), std::string::npos)
        << bad;
  }
  EXPECT_TRUE(absl::IsNotFound(MakeDeviceProvider(Description()).status()));
}

}  // namespace
}  // namespace holdfast::agent
