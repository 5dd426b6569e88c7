#include "daemon/image_difference.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "criu/test_images.h"
#include "dedup_store/store_testing.h"
#include "gtest/gtest.h"
#include "proto/rekindle/v1/image_layout.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::daemon {
namespace {

using store::kPageSize;
using store::StatusOf;

constexpr uint32_t kAreaFilePrivate = 1u << 6;
constexpr int kMappedFiles = 50;

class ImageDifferenceTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    std::vector<criu::TestFile> files;
    std::vector<criu::Vma> areas;
    for (uint32_t i = 0; i < kMappedFiles; ++i) {
      files.push_back({kMappedFiles - i, absl::StrCat("/lib/", kMappedFiles - i)});
      areas.push_back(criu::AnonymousArea((i + 1) * 16 * kPageSize, kPageSize));
      areas.back().status = 1 | kAreaFilePrivate;
      areas.back().shmid = i + 1;
    }
    image_.blobs[absl::StrCat(v1::kCriuFilePrefix, "files.img")] = criu::MakeFiles(files);
    for (int pid : {7, 8}) {
      image_.blobs[absl::StrCat(v1::kCriuFilePrefix, "mm-", pid, ".img")] = criu::MakeMm(areas);
      for (size_t i = 0; i < areas.size(); ++i) PageOf(pid, i) = store::MakePages(1, 100 + i);
    }
  }

  std::string& PageOf(int pid, size_t area) {
    return image_.objects[absl::StrCat(v1::kTaskMemoryPrefix, pid)][(area + 1) * 16 * kPageSize];
  }
  void SetCommands(const std::map<int, std::string>& commands) {
    v1::JobManifest manifest;
    for (const auto& [pid, command] : commands) {
      v1::JobProcess* process = manifest.add_processes();
      process->set_pid(pid);
      process->set_command(command);
    }
    image_.blobs[v1::kJobManifestObject] = manifest.SerializeAsString();
  }

  store::TestImage image_;
};

TEST_F(ImageDifferenceTest, AreasHaveTheNamesOfTheirFilesAndProcessesThoseOfTheirPrograms) {
  SetCommands({{7, "/usr/bin/python3 train.py"}, {8, ""}});
  RK_ASSERT_OK(image_.Commit(*store_, "a:1"));
  PageOf(7, 4) = store::MakePages(1, 4);
  PageOf(8, 6) = store::MakePages(1, 6);
  RK_ASSERT_OK(image_.Commit(*store_, "a:2"));
  auto rows = CompareImages(*store_, "a:1", "a:2", nullptr);
  RK_ASSERT_OK(rows);
  std::map<std::string, uint64_t> areas, different;  // by process and area
  for (const v1::AreaDifference& row : *rows) {
    if (row.area() == "metadata") continue;
    const std::string name = absl::StrCat(row.process(), "|", row.area());
    areas[name] = row.bytes_b();
    if (row.equal_bytes() != row.bytes_b()) different[name] = row.bytes_b() - row.equal_bytes();
  }
  EXPECT_EQ(areas.size(), size_t{2 * kMappedFiles});
  EXPECT_EQ(areas["7 python3|/lib/50"], kPageSize);
  EXPECT_EQ(areas["8|/lib/1"], kPageSize);
  EXPECT_EQ(different,
            (std::map<std::string, uint64_t>{{"7 python3|/lib/5", kPageSize}, {"8|/lib/7", kPageSize}}));
}

}  // namespace
}  // namespace rekindle::daemon
