// What the tests of the store share: images made from numbers, committed and compared byte by byte.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/log.h"
#include "dedup_store/store.h"

namespace rekindle::store {

#define RK_ASSERT_OK(expr)                                            \
  do {                                                                \
    const auto& rk_assert_status = (expr);                            \
    ASSERT_TRUE(rk_assert_status.ok()) << StatusOf(rk_assert_status); \
  } while (0)

inline std::string StatusOf(const absl::Status& status) { return status.ToString(); }
template <typename T>
std::string StatusOf(const absl::StatusOr<T>& status) {
  return status.status().ToString();
}

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr char kObject[] = "mem/1";  // a paged object, as one of a job's memory is named

enum class Content { kRandom, kText, kZero };

// `pages` pages that depend on nothing but `seed`.
inline std::string MakePages(size_t pages, uint64_t seed, Content content = Content::kRandom) {
  std::string bytes(pages * kPageSize, '\0');
  if (content == Content::kZero) return bytes;
  // SplitMix64, without a call: tests are built without optimisation, and this is much of what they do.
  uint64_t state = seed, page[kPageSize / sizeof(uint64_t)];
  for (size_t i = 0; i < pages; ++i) {
    for (uint64_t& word : page) {
      word = state += 0x9e3779b97f4a7c15;
      word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
      word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
      word ^= word >> 31;
      if (content == Content::kText) word = 0x6162636465660000 | (word & 0xff);
    }
    memcpy(&bytes[i * kPageSize], page, kPageSize);
  }
  return bytes;
}

inline absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline NewImageOptions Named(const std::string& reference) {
  NewImageOptions options;
  options.reference = reference;
  return options;
}

// The expected content of an image.
struct TestImage {
  std::map<std::string, std::string> blobs;
  std::map<std::string, std::map<uint64_t, std::string>> objects;  // name -> address -> pages

  absl::StatusOr<ImageInfo> Commit(Store& store, const std::string& reference, const std::string& parent = "",
                                   bool replace = false) const {
    NewImageOptions options;
    options.reference = reference;
    options.parent = parent;
    options.replace = replace;
    return Commit(store, options);
  }
  absl::StatusOr<ImageInfo> Commit(Store& store, const NewImageOptions& options) const {
    auto writer = store.NewImage(options);
    if (!writer.ok()) return writer.status();
    for (const auto& [name, bytes] : blobs) {
      if (auto status = (*writer)->AddBlob(name, bytes); !status.ok()) return status;
    }
    for (const auto& [name, ranges] : objects) {
      for (const auto& [address, pages] : ranges) {
        auto bytes =
            absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(pages.data()), pages.size());
        if (auto status = (*writer)->AddPages(name, address, bytes); !status.ok()) return status;
      }
    }
    return (*writer)->Commit();
  }

  // Reads all of it back in both ways. Empty when every byte is right; otherwise what is not. An error of the
  // store is returned as such.
  absl::StatusOr<std::string> Compare(const Store& store, const std::string& reference) const {
    auto reader = store.OpenImage(reference);
    if (!reader.ok()) return reader.status();
    if ((*reader)->objects().size() != blobs.size() + objects.size()) return std::string("number of objects");
    for (const auto& [name, bytes] : blobs) {
      auto blob = (*reader)->ReadBlob(name);
      if (!blob.ok()) return blob.status();
      if (*blob != bytes) return absl::StrCat("blob ", name);
    }
    for (const auto& [name, ranges] : objects) {
      auto runs = (*reader)->Runs(name);
      if (!runs.ok()) return runs.status();
      uint64_t pages_there = 0, pages_expected = 0;
      for (const PageRun& run : *runs) pages_there += run.pages;
      for (const auto& [address, pages] : ranges) pages_expected += pages.size() / kPageSize;
      if (pages_there != pages_expected) return absl::StrCat("number of pages of ", name);

      std::map<uint64_t, std::string> got;
      for (const auto& [address, pages] : ranges) got[address] = std::string(pages.size(), '\0');
      absl::Mutex mutex;
      auto status = (*reader)->ReadRanges(name, *runs, [&](uint64_t at, absl::Span<const std::byte> pages) {
        absl::MutexLock lock(&mutex);
        for (size_t done = 0; done < pages.size(); done += kPageSize) {
          auto range = std::prev(got.upper_bound(at + done));
          memcpy(range->second.data() + (at + done - range->first), pages.data() + done, kPageSize);
        }
        return absl::OkStatus();
      });
      if (!status.ok()) return status;
      for (const auto& [address, pages] : ranges) {
        if (got[address] != pages) return absl::StrCat("ReadRanges of ", name, " at ", address);
        std::string direct(pages.size(), 'x');
        status =
            (*reader)->ReadPages(name, address, {reinterpret_cast<std::byte*>(direct.data()), direct.size()});
        if (!status.ok()) return status;
        if (direct != pages) return absl::StrCat("ReadPages of ", name, " at ", address);
      }
    }
    return std::string();
  }

  void ExpectIn(const Store& store, const std::string& reference) const {
    auto difference = Compare(store, reference);
    ASSERT_TRUE(difference.ok()) << reference << ": " << difference.status();
    EXPECT_EQ(*difference, "") << reference;
  }
};

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(parent_folder(), "rekindle_store_test.");
    RK_ASSERT_OK(folder);
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    options_.path = folder_->path() + "/store";
    options_.worker_threads = 2;
  }

  virtual std::string parent_folder() const { return testing::TempDir(); }

  void Reopen() {
    store_.reset();
    auto store = Store::Open(options_);
    RK_ASSERT_OK(store);
    store_ = *std::move(store);
  }

  void ExpectWhole(bool read_data = true) {
    FsckOptions options;
    options.read_data = read_data;
    auto report = store_->Fsck(options);
    RK_ASSERT_OK(report);
    EXPECT_TRUE(report->problems.empty()) << report->problems.front();
    EXPECT_TRUE(report->lost_images.empty());
  }

  absl::Status Repair() {
    FsckOptions options;
    options.read_data = true;
    options.repair = true;
    return store_->Fsck(options).status();
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

// With a store that is open, and shows nothing of the trouble that it gets into and warns of.
class TroubledStoreTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    SetLogLevel(LogLevel::kError);
    Reopen();
  }
  void TearDown() override {
    store_.reset();  // what it uses may be of the test's own
    SetLogLevel(LogLevel::kWarning);
  }
};

// Runs `body` in a child process; what it returns is what went wrong. No thread may run in the caller.
inline pid_t StartChild(const std::function<std::string()>& body) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  std::string error = body();
  if (!error.empty()) fprintf(stderr, "child: %s\n", error.c_str());
  _exit(error.empty() ? 0 : 1);
}

inline int WaitForChild(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace rekindle::store
