// For tests that damage a store many times: where it lies, its files as bytes, and back.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {

class DamagedManyTimesTest : public StoreTest {
 protected:
  // Hundreds of stores are made here, and what a disk's cache loses is simulated: memory does.
  std::string parent_folder() const override {
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : StoreTest::parent_folder();
  }
  void SetUp() override {
    StoreTest::SetUp();
    SetLogLevel(LogLevel::kError);  // every fault would warn
  }
  void TearDown() override { SetLogLevel(LogLevel::kWarning); }
};

using StoreFiles = std::map<std::string, std::string>;  // path within the store -> content

inline void WriteStoreFile(const std::string& path, const std::string& content) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0) << path;
  ASSERT_EQ(write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size())) << path;
  close(fd);
}

inline StoreFiles SaveStore(const std::string& path) {
  StoreFiles files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    auto content = ReadFile(entry.path());
    EXPECT_TRUE(content.ok()) << content.status();
    files[entry.path().string().substr(path.size() + 1)] = *std::move(content);
  }
  return files;
}

// The folders must be there.
inline void RestoreStore(const std::string& path, const StoreFiles& files) {
  std::vector<std::filesystem::path> there;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) there.push_back(entry.path());
  }
  // Not written over: somebody may have them mapped.
  for (const auto& file : there) std::filesystem::remove(file);
  for (const auto& [name, content] : files) WriteStoreFile(path + "/" + name, content);
}

}  // namespace rekindle::store
