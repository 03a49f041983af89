// SPDX-License-Identifier: Apache-2.0
#include "parallel/session_store.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "client/session.h"

namespace holdfast::parallel {
namespace {

std::string_view View(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

void Check(const client::Error& error, const std::string& what) {
  if (error) C10_THROW_ERROR(DistStoreError, "rendezvous store: " + what + ": " + error.message);
}

class SessionStore final : public c10d::Store {
 public:
  SessionStore(client::Session* session, std::chrono::milliseconds timeout)
      : Store(timeout), session_(session) {}

  using Store::compareSet;
  using Store::set;

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<SessionStore>(session_, timeout_);
  }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    Check(session_->StoreSet(key, View(value)), "set " + key);
  }

  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    std::string value;
    Check(session_->StoreCompareSet(key, View(expected), View(desired), &value),
          "compare-and-set " + key);
    return Bytes(value);
  }

  std::vector<uint8_t> get(const std::string& key) override {
    std::string value;
    Check(session_->StoreGet(key, timeout_.count(), &value), "get " + key);
    return Bytes(value);
  }

  int64_t add(const std::string& key, int64_t delta) override {
    int64_t sum = 0;
    Check(session_->StoreAdd(key, delta, &sum), "add " + key);
    return sum;
  }

  bool deleteKey(const std::string& key) override {
    bool existed = false;
    Check(session_->StoreDelete(key, &existed), "delete " + key);
    return existed;
  }

  bool check(const std::vector<std::string>& keys) override {
    bool all_there = false;
    Check(session_->StoreCheck(keys, &all_there),
          "check " + (keys.empty() ? std::string() : keys.front()));
    return all_there;
  }

  int64_t getNumKeys() override {
    C10_THROW_ERROR(NotImplementedError, "the rendezvous store does not count its keys");
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    Check(session_->StoreWait(keys, timeout.count()),
          "wait for " + (keys.empty() ? std::string() : keys.front()));
  }

 private:
  client::Session* session_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> MakeSessionStore(client::Session* session, int64_t timeout_ms) {
  return c10::make_intrusive<SessionStore>(session, std::chrono::milliseconds(timeout_ms));
}

}  // namespace holdfast::parallel
