// Real CRIU, and its tasks as they are when the files are looked at that they were given: with what CRIU
// itself has open in them. The job is root's, which every machine lets CRIU dump; it is looked at as if it
// were another's.
#include <sys/types.h>

#include <string>

#include "base/file.h"
#include "base/opened_files.h"
#include "criu/installation.h"
#include "criu/restore_session.h"
#include "criu/test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "restore/opened_files_check.h"

namespace rekindle::restore {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kAnotherUser = 65534;

class Looking : public criu::RestoreObserver {
 public:
  Looking(v1::JobManifest manifest, std::string criu_log)
      : manifest_(std::move(manifest)), criu_log_(std::move(criu_log)) {}

  absl::Status TasksReady(pid_t root) override {
    const auto look = [&](const std::string& log) {
      return CheckOpenedFiles({manifest_, user_, {root}, "/", {}, INT64_MAX, log});
    };
    as_it_is_ = look(criu_log_);
    as_the_jobs_ = look("");
    return absl::OkStatus();
  }

  absl::Status as_it_is_ = absl::UnknownError("not looked at"), as_the_jobs_ = as_it_is_;

 private:
  const v1::JobManifest manifest_;
  const std::string criu_log_;
  const Owner user_{kAnotherUser, kAnotherUser, {}};
};

TEST(OpenedFilesRestoreTest, CriusLogIsNoFileOfTheJob) {
  if (::geteuid() != 0) GTEST_SKIP() << "CRIU restores as root";
  const auto criu = criu::FindCriu();
  ASSERT_TRUE(criu.ok()) << criu.status();
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  v1::JobManifest manifest;
  const auto opened = FilesOpenedBy(job.pid(), OpenedFilesOf::kMappingsToo);
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const OpenedFile& file : *opened) {
    v1::OpenedInode* had = manifest.add_opened();
    had->set_device(file.identity.device);
    had->set_inode(file.identity.inode);
    had->set_born_ns(file.identity.born_ns);
    had->set_access(static_cast<uint32_t>(file.access));
  }
  criu::MemoryConsumer consumer;
  criu::DumpOptions dump_options;
  dump_options.pid = job.pid();
  const criu::StreamedDump dump = criu::DumpStreamed(dump_options, job.folder(), &consumer);
  ASSERT_TRUE(dump.exit.ok()) << dump.log;
  for (const auto& [name, content] : consumer.TakeFiles())
    ASSERT_TRUE(WriteFileAtomically(job.folder() + "/" + name, content).ok());
  job.Kill();

  criu::RestoreOptions options;
  options.images_directory = job.folder();
  Looking looking(manifest, job.folder() + "/" + options.log_file);
  const auto tree = criu::RunRestore(*criu, options, criu::JobNamespaces(), &looking, -1);
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(looking.as_it_is_, absl::OkStatus());
  // Why it is told apart.
  EXPECT_TRUE(absl::IsPermissionDenied(looking.as_the_jobs_)) << looking.as_the_jobs_;
  EXPECT_THAT(std::string(looking.as_the_jobs_.message()), HasSubstr(options.log_file));
  EXPECT_TRUE(job.GoesOn());
}

}  // namespace
}  // namespace rekindle::restore
