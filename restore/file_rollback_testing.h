// Files as a job had them when an image was taken, for tests of their roll-back.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/file_beginning.h"
#include "base/machine.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "restore/file_rollback.h"

namespace rekindle::restore {

inline constexpr uint64_t kPage = store::kPageSize;
using Report = v1::FileRollback;

// Both steps of it.
inline absl::Status ApplyRollback(const store::ImageReader& image, const WithRights& with_rights,
                                  std::vector<FileAction>* plan) {
  const absl::Status put_back = PutFilesBack(image, with_rights, plan);
  return put_back.ok() ? CutFilesOff(with_rights, plan) : put_back;
}

inline void OurRights(const std::function<void()>& work) { work(); }

struct Recorded {
  bool in_place = false;
  bool content = false;  // the image has it
  bool is_new = false;
  bool shared_memory = false;
  bool tracked = false;
};

class FileRollbackTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    rollback_.set_mode(v1::Rollback::APPEND);
    manifest_.set_job_id(ThisMachine().value().boot_id + "/70/1");
    files_ = folder_->path() + "/files";
    ASSERT_EQ(::mkdir(files_.c_str(), 0755), 0);
  }

  std::string Path(const std::string& name) const { return files_ + "/" + name; }

  void Write(const std::string& name, const std::string& content) {
    UniqueFd fd = OpenFile(Path(name), O_WRONLY | O_CREAT | O_TRUNC, 0640).value();
    ASSERT_TRUE(WriteFully(fd.get(), content.data(), content.size(), name).ok());
  }
  void Append(const std::string& name, const std::string& more) {
    UniqueFd fd = OpenFile(Path(name), O_WRONLY | O_APPEND).value();
    ASSERT_TRUE(WriteFully(fd.get(), more.data(), more.size(), name).ok());
  }
  std::string Read(const std::string& name) const { return ReadFile(Path(name)).value_or("(none)"); }
  struct stat Stat(const std::string& name) const {
    struct stat info = {};
    EXPECT_EQ(::lstat(Path(name).c_str(), &info), 0) << name;
    return info;
  }

  // Makes the file and has the image say that it was so.
  void Record(const std::string& name, const std::string& content, Recorded recorded = {}) {
    Write(name, content);
    RecordAsItIs(name, recorded);
  }
  void RecordAsItIs(const std::string& name, Recorded recorded) {
    struct stat info = Stat(name);
    v1::WrittenFile* file = manifest_.add_written_files();
    file->set_path(Path(name));
    file->set_size(static_cast<uint64_t>(info.st_size));
    file->set_device(info.st_dev);
    file->set_inode(info.st_ino);
    file->set_in_place(recorded.in_place);
    file->set_modified_ns(info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec);
    file->set_mode(info.st_mode & 0777);
    file->set_uid(info.st_uid);
    file->set_gid(info.st_gid);
    file->set_born_ns(BornUnixNanos(AT_FDCWD, Path(name), AT_SYMLINK_NOFOLLOW));
    file->set_is_new(recorded.is_new);
    file->set_shared_memory(recorded.shared_memory);
    file->set_tracked(recorded.tracked);
    if (file->size() > 0 && !recorded.in_place)
      file->set_ending(FileEnding(OpenFile(Path(name), O_RDONLY).value().get(), file->size()).value());
    if (!recorded.content) return;
    file->set_content_object("files/" + std::to_string(manifest_.written_files_size() - 1));
    std::string content = Read(name);
    content.resize((content.size() + kPage - 1) / kPage * kPage);
    for (uint64_t at = 0; at < content.size(); at += kPage) {
      std::string page = content.substr(at, kPage);
      if (page != std::string(kPage, '\0') || at == 0) stored_.objects[file->content_object()][at] = page;
    }
  }

  // The time of a file may stand still for some milliseconds after it was written.
  void Rewrite(const std::string& name, uint64_t offset, const std::string& bytes) {
    UniqueFd fd = OpenFile(Path(name), O_WRONLY).value();
    ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
    Touch(name);
  }
  // Another file gets its name.
  void Replace(const std::string& name, const std::string& content) {
    Write("another", content);
    ASSERT_EQ(::rename(Path("another").c_str(), Path(name).c_str()), 0);
  }
  void Touch(const std::string& name) {
    timespec times[2] = {{0, UTIME_OMIT}, {Stat(name).st_mtim.tv_sec + 10, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, Path(name).c_str(), times, 0), 0);
  }

  const store::ImageReader& Image() {
    if (!image_) {
      stored_.blobs["rekindle/job"] = manifest_.SerializeAsString();
      EXPECT_TRUE(stored_.Commit(*store_, "job:1").ok());
      image_ = store_->OpenImage("job:1").value();
    }
    return *image_;
  }

  std::vector<FileAction> Plan() {
    auto plan = PlanRollback(manifest_, Image(), rollback_, rights_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : std::vector<FileAction>();
  }
  std::vector<Report> Apply() {
    std::vector<FileAction> plan = Plan();
    absl::Status status = ApplyRollback(Image(), rights_, &plan);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<Report> reports;
    for (const FileAction& action : plan) reports.push_back(action.report);
    return reports;
  }
  // Of the only file.
  Report ApplyOne() {
    std::vector<Report> reports = Apply();
    EXPECT_THAT(reports, testing::SizeIs(1));
    return reports.empty() ? Report() : reports[0];
  }

  std::string files_;
  v1::JobManifest manifest_;
  v1::Rollback rollback_;
  WithRights rights_ = OurRights;
  store::TestImage stored_;
  std::unique_ptr<store::ImageReader> image_;
};

}  // namespace rekindle::restore
