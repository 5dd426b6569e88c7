// A store on a disk of which each test says what fails.
#pragma once

#include "absl/status/status.h"
#include "dedup_store/hooked_disk.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {

class HookedStoreTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    options_.io = &disk_;
    TroubledStoreTest::SetUp();
  }

  // Asked by the store's threads too; to be changed only while the store does nothing.
  HookedDisk::Hook hook_ = [](const HookedDisk::Operation&) { return absl::OkStatus(); };
  HookedDisk disk_{[this](const HookedDisk::Operation& operation) { return hook_(operation); }};
};

}  // namespace rekindle::store
