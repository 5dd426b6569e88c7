#include "restore/compatibility.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/file_beginning.h"
#include "base/status.h"
#include "base/test_child.h"
#include "base/test_user.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "restore/test_patience.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// ---- the machine

class CheckMachineTest : public testing::Test {
 protected:
  void SetUp() override {
    machine_.architecture = "x86_64";
    machine_.kernel = "6.1.0-28-amd64";
    machine_.cpu_features = {"avx", "avx2", "sse2"};
    manifest_.set_machine("x86_64");
    manifest_.set_kernel("6.1.0-13-amd64");
    manifest_.set_criu_version("4.2.1");
    for (const char* flag : {"sse2", "avx"}) manifest_.add_cpu_features(flag);
  }

  absl::Status Check() const { return CheckMachine(manifest_, machine_, criu_); }
  std::string Refusal() const {
    absl::Status status = Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }

  Machine machine_;
  v1::JobManifest manifest_;
  criu::Version criu_{4, 2, 0};
};

TEST_F(CheckMachineTest, FitsItsOwnMachineAndABetterOne) {
  EXPECT_TRUE(Check().ok()) << Check();
  machine_.kernel = "6.18.1";
  criu_ = {5, 0, 0};
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(CheckMachineTest, ImageThatSaysNothingIsTaken) {
  manifest_ = v1::JobManifest();
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(CheckMachineTest, OtherArchitecture) {
  manifest_.set_machine("aarch64");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("aarch64"), HasSubstr("x86_64")));
}

TEST_F(CheckMachineTest, MissingInstructions) {
  manifest_.add_cpu_features("avx512f");
  manifest_.add_cpu_features("amx_tile");
  EXPECT_THAT(Refusal(), HasSubstr("lacks amx_tile, avx512f"));
}

TEST_F(CheckMachineTest, MissingRegisters) {
  manifest_.add_cpu_features("xsavec");
  EXPECT_THAT(Refusal(), HasSubstr("lacks xsavec"));
}

TEST_F(CheckMachineTest, FeaturesThatNoProgramSeesDoNotMatter) {
  for (const char* flag :
       {"ibrs", "constant_tsc", "vmx", "arch_perfmon", "xsaves", "xsaveerptr", "erms", "fsrm"})
    manifest_.add_cpu_features(flag);
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(CheckMachineTest, OlderKernel) {
  manifest_.set_kernel("6.12.3");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("6.12.3"), HasSubstr("6.1.0-28-amd64")));
}

TEST_F(CheckMachineTest, OlderCriu) {
  manifest_.set_criu_version("4.3");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("CRIU 4.3"), HasSubstr("4.2")));
  manifest_.set_criu_version("4.2.9");  // another patch level reads the same images
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(CheckMachineTest, AllReasonsAreNamedAtOnce) {
  manifest_.set_kernel("7.0");
  manifest_.add_cpu_features("sha_ni");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("7.0"), HasSubstr("sha_ni"), HasSubstr("--ignore-mismatch")));
}

// ---- process ids

// An image of one process.
std::vector<criu::PstreeEntry> TreeOf(pid_t pid) {
  criu::PstreeEntry entry;
  entry.pid = entry.pgid = entry.sid = pid;
  entry.threads = {pid};
  return {entry};
}

// The PID of a process that is no more.
pid_t FreePid() {
  TestChild child;
  pid_t pid = child.pid();
  child.Kill();
  child.Reap();
  return pid;
}

std::string IdRefusal(const std::vector<criu::PstreeEntry>& tree, absl::Duration patience = kShort) {
  absl::Status status = CheckIdsAreFree(tree, -1, patience);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(CheckIdsTest, FreeIdsAreFree) {
  absl::Status status = CheckIdsAreFree(TreeOf(FreePid()));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CheckIdsTest, LivingHolderIsRefusedWithoutWaiting) {
  TestChild holder;
  // With such patience a wait would be seen.
  EXPECT_THAT(IdRefusal(TreeOf(holder.pid()), kAsLongAsItTakes),
              AllOf(HasSubstr(std::to_string(holder.pid())), HasSubstr("restore_test")));
}

TEST(CheckIdsTest, ThreadIdsCount) {
  TestChild holder;
  std::vector<criu::PstreeEntry> tree = TreeOf(FreePid());
  tree[0].threads.push_back(holder.pid());
  EXPECT_THAT(IdRefusal(tree), HasSubstr(std::to_string(holder.pid())));
}

// Leaves a process that belongs to the group (and, of another session, the session) of one that is dead and
// reaped.
class Survivor {
 public:
  explicit Survivor(bool session) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    UniqueFd read_end(ends[0]), write_end(ends[1]);
    TestChild leader([&] {
      if (session ? ::setsid() < 0 : ::setpgid(0, 0) != 0) return false;
      pid_t member = ::fork();
      if (member == 0) {
        ::prctl(PR_SET_PDEATHSIG, 0);
        // A group of its own does not free the number of the session.
        if (session) ::setpgid(0, 0);
        pid_t self = ::getpid();
        if (::write(ends[1], &self, sizeof self) != static_cast<ssize_t>(sizeof self)) ::_exit(1);
        for (;;) ::pause();
      }
      return member > 0;
    });
    if (!ReadFully(ends[0], &pid_, sizeof pid_, "pipe").ok()) pid_ = 0;
    leader_ = leader.pid();
  }
  ~Survivor() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
  pid_t pid() const { return pid_; }
  pid_t leader() const { return leader_; }

 private:
  pid_t pid_ = 0, leader_ = 0;
};

TEST(CheckIdsTest, GroupsAndSessionsKeepTheirNumberTaken) {
  for (bool session : {false, true}) {
    Survivor survivor(session);
    ASSERT_GT(survivor.pid(), 0);
    ASSERT_FALSE(PathExists("/proc/" + std::to_string(survivor.leader())));
    EXPECT_THAT(
        IdRefusal(TreeOf(survivor.leader())),
        AllOf(HasSubstr(std::to_string(survivor.leader())),
              HasSubstr("PID " + std::to_string(survivor.pid())), HasSubstr("process group or session")))
        << session;
  }
}

TEST(CheckIdsTest, OrphansThatEndAreWaitedFor) {
  Survivor survivor(true);
  ASSERT_GT(survivor.pid(), 0);
  std::thread killer([&] { ::kill(survivor.pid(), SIGKILL); });
  absl::Status status = CheckIdsAreFree(TreeOf(survivor.leader()), -1, kAsLongAsItTakes);
  killer.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CheckIdsTest, KilledProcessIsWaitedForWhileItGivesItsMemoryBack) {
  constexpr size_t kBytes = 256 << 20;
  TestChild large([] {
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return memory != MAP_FAILED;
  });
  ASSERT_TRUE(large.prepared());
  pid_t pid = large.pid();
  large.Kill();
  std::thread reaper([&] { large.Reap(); });
  absl::Status status = CheckIdsAreFree(TreeOf(pid), -1, kAsLongAsItTakes);
  reaper.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CheckIdsTest, ZombieThatStaysIsRefusedAndItsParentNamed) {
  TestChild zombie;
  zombie.Kill();
  ASSERT_TRUE(zombie.AwaitEnd());
  EXPECT_THAT(IdRefusal(TreeOf(zombie.pid())),
              AllOf(HasSubstr(std::to_string(zombie.pid())), HasSubstr("zombie"),
                    HasSubstr("parent " + std::to_string(::getpid())), Not(HasSubstr("it still runs"))));
}

TEST(CheckIdsTest, WaitingCanBeCancelled) {
  TestChild zombie;
  zombie.Kill();
  ASSERT_TRUE(zombie.AwaitEnd());
  UniqueFd cancel(::eventfd(1, EFD_CLOEXEC));
  absl::Status status = CheckIdsAreFree(TreeOf(zombie.pid()), cancel.get(), kAsLongAsItTakes);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST(CheckIdsTest, ManyHoldersAreCounted) {
  TestChild children[5];
  std::vector<criu::PstreeEntry> tree;
  for (const TestChild& child : children) tree.push_back(TreeOf(child.pid())[0]);
  EXPECT_THAT(IdRefusal(tree), AllOf(HasSubstr("5 are in use"), HasSubstr("…")));
}

// ---- files and memory

class CheckFilesTest : public testing::Test {
 protected:
  std::string Make(const std::string& name, size_t bytes) {
    std::string path = folder_.path() + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(path, std::string(bytes, 'x')).ok());
    return path;
  }
  void Need(const std::string& path, std::optional<uint64_t> size) {
    v1::NeededFile* file = manifest_.add_files();
    file->set_path(path);
    file->set_has_size(size.has_value());
    file->set_size(size.value_or(0));
  }
  // As one that it only reads, with what a capture knows it by.
  void Know(const std::string& path, uint64_t size) {
    Need(path, size);
    struct stat info;
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    const UniqueFd fd = OpenFile(path, O_RDONLY).value();
    v1::NeededFile* file = manifest_.mutable_files(manifest_.files_size() - 1);
    file->set_beginning(FileBeginning(fd.get(), size).value());
    file->set_middle(FileMiddle(fd.get(), size).value());
    file->set_inode(info.st_ino);
    file->set_modified_ns(1);  // whatever it is, the clock need not tick on before it is written to again
  }
  std::string Refusal() {
    absl::Status status = CheckFiles(manifest_, std::nullopt, &ignored_);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_TRUE(IsRefusedForFiles(Annotate(status, "cloning an image"))) << status;
    return std::string(status.message());
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_compatibility_test.").value();
  v1::JobManifest manifest_;
  std::vector<std::string> ignored_;
};

TEST_F(CheckFilesTest, UnchangedFilesAreFine) {
  manifest_.set_working_directory(folder_.path());
  Need(Make("same", 10), 10);
  Need(Make("a log that is appended to", 10), std::nullopt);
  Need(folder_.path(), 1);   // a directory's size says nothing
  Need("/proc/1/gone", 10);  // the kernel makes these
  Need("an image's strange entry", 10);
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &ignored_).ok())
      << CheckFiles(manifest_, std::nullopt, &ignored_);
}

TEST_F(CheckFilesTest, MissingFile) {
  Need(folder_.path() + "/gone", 10);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr(folder_.path() + "/gone is gone"), Not(HasSubstr(kMakeFolder))));
  Need(folder_.path() + "/no/gone", 10);
  EXPECT_THAT(Refusal(), HasSubstr(absl::StrCat("/no/gone is gone, with its folder: ", kMakeFolder)));
}

TEST_F(CheckFilesTest, AFileThatIsNoneAnyMore) {
  const std::string path = folder_.path() + "/file", link = folder_.path() + "/link";
  const auto need_written = [&](const std::string& name) {
    Need(name, 10);
    v1::WrittenFile* written = manifest_.add_written_files();
    written->set_path(name);
    written->set_inode(1);
    written->set_uid(12345);
  };
  need_written(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(Refusal(), HasSubstr(path + " is a special file now"));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  Make("file", 10);
  ignored_.clear();
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &ignored_).ok());
  EXPECT_THAT(ignored_, Contains(AllOf(HasSubstr(path), HasSubstr("uid 12345's"))));

  // It is what it leads to that the job gets.
  Need(link, 10);
  ASSERT_EQ(::symlink("other", link.c_str()), 0);
  EXPECT_THAT(Refusal(), HasSubstr(link + " is a symbolic link now that leads nowhere"));
  Make("other", 11);
  EXPECT_THAT(Refusal(), HasSubstr(link + ", which it only reads, has grown"));
  Make("other", 10);
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &ignored_).ok());
}

TEST_F(CheckFilesTest, FoldersOfSocketsAreMadeAgain) {
  const std::string gone = folder_.path() + "/gone";
  manifest_.set_working_directory(gone);
  Need(gone, std::nullopt);  // CRIU has a working directory among the files
  EXPECT_THAT(Refusal(), HasSubstr("working directory"));
  manifest_.add_socket_folders()->set_path(gone);
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &ignored_).ok())
      << CheckFiles(manifest_, std::nullopt, &ignored_);
  Need(gone + "/file", 1);
  EXPECT_THAT(Refusal(), HasSubstr("gone/file is gone"));
}

TEST_F(CheckFilesTest, ARollBackIsTheCureOnlyWhereTheImageHasTheContent) {
  const std::string gone = folder_.path() + "/gone", shorter = Make("shorter", 9);
  Need(gone, 10);
  v1::WrittenFile* file = manifest_.add_written_files();
  file->set_path(gone);
  file->set_size(10);
  EXPECT_THAT(Refusal(), Not(HasSubstr("--rollback")));
  file->set_content_object("files/0");
  EXPECT_THAT(Refusal(), HasSubstr("--rollback append"));
  file->set_path(shorter);
  EXPECT_THAT(Refusal(), Not(HasSubstr("--rollback"))) << "the one that is gone is another";
  Need(shorter, 10);
  EXPECT_THAT(Refusal(), HasSubstr("--rollback append"));
  file->clear_content_object();
  file->set_size(0);
  file->set_path(gone);
  EXPECT_THAT(Refusal(), HasSubstr("--rollback append")) << "nothing is all that an empty one had";
}

TEST_F(CheckFilesTest, MissingWorkingDirectory) {
  manifest_.set_working_directory(folder_.path() + "/work");
  EXPECT_THAT(Refusal(),
              HasSubstr("working directory " + folder_.path() + "/work is gone: make that folder"));
}

TEST_F(CheckFilesTest, ChangedSizes) {
  std::string shorter = Make("shorter", 9), longer = Make("longer", 20);
  Need(shorter, 10);
  Need(longer, 10);
  Need(longer, 10);  // open twice: one problem
  std::string refusal = Refusal();
  EXPECT_THAT(refusal, HasSubstr(shorter + " has become shorter (9 bytes, it had 10)"));
  EXPECT_THAT(refusal, HasSubstr(longer + ", which it only reads, has grown (20 bytes, it had 10)"));
  EXPECT_EQ(refusal.find(" has grown"), refusal.rfind(" has grown"));
}

TEST_F(CheckFilesTest, NothingIsToldOfWhatTheUserMayNotSee) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(::mkdir((folder_.path() + "/closed").c_str(), 0700), 0);
  const std::string open = Make("open", 9);
  Need(open, 10);
  Need(Make("closed/shorter", 9), 10);
  Need(folder_.path() + "/closed/none", 10);
  const absl::Status told = CheckFiles(manifest_, Owner{kNobody, kNobody, {}}, &ignored_);
  EXPECT_THAT(std::string(told.message()), HasSubstr(open + " has become shorter"));
  EXPECT_THAT(std::string(told.message()), Not(HasSubstr("closed")));
}

TEST_F(CheckFilesTest, WhatTheJobWritesMayHaveGrownButNotShrunk) {
  std::string log = Make("log", 20);
  Need(log, 10);
  manifest_.mutable_files(manifest_.files_size() - 1)->set_written(true);
  std::vector<std::string> warnings;
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr(log + " has grown since the image was taken (20 bytes, it had 10)"));
  EXPECT_THAT(warnings[0], HasSubstr("the job writes on from where it was; --rollback append cuts off"));
  ASSERT_EQ(::truncate(log.c_str(), 9), 0);
  EXPECT_THAT(Refusal(), HasSubstr("has become shorter"));
}

TEST_F(CheckFilesTest, WhatItAppendsToIsThereTwiceUnlessItIsCutOff) {
  constexpr char kCure[] = "; --rollback append cuts off what was written since";
  const auto written = [this](const std::string& name) {
    const std::string path = Make(name, 20);
    struct stat info;
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    Need(path, std::nullopt);  // CRIU has no size of what was opened for appending
    v1::WrittenFile* file = manifest_.add_written_files();
    file->set_path(path);
    file->set_size(10);
    file->set_inode(info.st_ino);
    return path;
  };
  const auto warnings = [this](NeededFiles which) {
    std::vector<std::string> told;
    EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &told, SeenFrom::kMachine, which).ok());
    return told;
  };
  manifest_.set_log(written("log"));  // of `run`: it is to be kept
  v1::StdioSlot* output = manifest_.add_stdio();
  output->set_fd(1);
  output->set_kind("file");
  output->set_path(written("nohup.out"));
  written("rotated");
  manifest_.mutable_written_files(2)->set_inode(1);
  EXPECT_TRUE(warnings(NeededFiles::kAll).empty());

  const std::string table = written("ap.csv");
  const std::vector<std::string> told = warnings(NeededFiles::kAll);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], absl::StrCat(table,
                                  " has grown since the image was taken (20 bytes, it had 10): what the job "
                                  "writes once more comes behind that",
                                  kCure));
  EXPECT_TRUE(warnings(NeededFiles::kAfterRollBack).empty()) << "the table of what was done says so";
  for (const char* name : {"2", "3", "4", "5"}) written(name);
  const std::vector<std::string> many = warnings(NeededFiles::kAll);
  ASSERT_EQ(many.size(), 4u);
  EXPECT_EQ(many[3], absl::StrCat("and 2 more files have grown since the image was taken", kCure));
}

TEST_F(CheckFilesTest, WhatTheJobReadsMayHaveBeenAppendedToButNotEdited) {
  const std::string log = Make("log", 10);
  Need(log, 10);
  manifest_.mutable_files(0)->set_beginning(FileBeginning(OpenFile(log, O_RDONLY)->get(), 10).value());
  Make("log", 20);
  std::vector<std::string> warnings;
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &warnings).ok())
      << CheckFiles(manifest_, std::nullopt, &warnings);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr(log + ", which others append to, has grown"));
  EXPECT_TRUE(WriteFileAtomically(log, "y" + std::string(10, 'x')).ok());
  EXPECT_THAT(Refusal(), HasSubstr(log + ", which it only reads, was edited (11 bytes, it had 10)"));
  Make("log", 9);
  EXPECT_THAT(Refusal(), HasSubstr("has become shorter"));
}

TEST_F(CheckFilesTest, WhatTheJobReadsMayNotHoldAnotherContentOfTheSameSize) {
  const std::string data = Make("data", 200'000), text(200'000, 'x');
  const auto put = [&](const std::string& content) {
    EXPECT_TRUE(WriteFileAtomically(data + ".new", content).ok());
    EXPECT_EQ(::rename((data + ".new").c_str(), data.c_str()), 0);  // another file
  };
  const auto told = [&](std::vector<std::string> ignored = {}) {
    std::vector<std::string> warnings;
    const absl::Status status = CheckFiles(manifest_, std::nullopt, &warnings, SeenFrom::kMachine,
                                           NeededFiles::kAll, {}, {}, ignored);
    return status.ok() ? absl::StrJoin(warnings, "\n") : std::string(status.message());
  };
  Know(data, 200'000);
  manifest_.mutable_files(0)->set_mapped(true);
  put(text);  // as by a copy on another machine
  EXPECT_EQ(told(), "");
  for (const size_t at : {size_t{0}, size_t{66'000}, text.size() - 1}) {
    std::string edited = text;
    edited[at] = 'y';
    put(edited);
    EXPECT_THAT(told(), HasSubstr(data + ", which it has mapped, was edited: it is as long as it was")) << at;
    EXPECT_THAT(told(), AllOf(HasSubstr("--ignore-path"), Not(HasSubstr("--rollback"))));
    EXPECT_EQ(told({folder_.path()}), "");
  }
  // A refusal must not be the reason that a job is lost.
  std::vector<std::string> warnings;
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &warnings, SeenFrom::kMachine, NeededFiles::kAll, {}, {},
                         {}, EditedFiles::kWarn)
                  .ok());
  EXPECT_THAT(warnings, ElementsAre(HasSubstr(kEditedSince)));
  // What copies are made with has no such option.
  const absl::Status for_clone =
      CheckFiles(manifest_, std::nullopt, &warnings, SeenFrom::kMachine, NeededFiles::kAll, {}, {}, {},
                 EditedFiles::kRefuseMapped, CheckedFor::kClone);
  EXPECT_THAT(std::string(for_clone.message()),
              HasSubstr("restore this one once, not as a copy, with --ignore-path"));
  manifest_.mutable_files(0)->clear_mapped();
  EXPECT_THAT(told(), AllOf(HasSubstr(data), HasSubstr(kEditedSince)));
}

// As of a shell, which has its script open.
TEST_F(CheckFilesTest, AScriptThatWasEditedIsNoReasonToLoseAJob) {
  const std::string script = Make("train.sh", 500);
  Know(script, 500);
  for (const size_t bytes : {400, 600}) {
    ASSERT_TRUE(WriteFileAtomically(script, std::string(bytes, 'e')).ok());
    std::vector<std::string> warnings;
    const auto check = [&](EditedFiles edited, std::vector<std::string> ignored = {}) {
      return CheckFiles(manifest_, std::nullopt, &warnings, SeenFrom::kMachine, NeededFiles::kAll, {}, {},
                        ignored, edited);
    };
    EXPECT_TRUE(absl::IsFailedPrecondition(check(EditedFiles::kRefuseMapped))) << bytes;
    EXPECT_TRUE(check(EditedFiles::kRefuseMapped, {script}).ok()) << bytes;
    EXPECT_THAT(warnings, IsEmpty());
    EXPECT_TRUE(check(EditedFiles::kWarn).ok()) << bytes;
    EXPECT_THAT(warnings, ElementsAre(HasSubstr(kEditedSince)));
    manifest_.mutable_files(0)->set_mapped(true);
    EXPECT_FALSE(check(EditedFiles::kWarn).ok()) << bytes;
    manifest_.mutable_files(0)->clear_mapped();
  }
  ASSERT_TRUE(WriteFileAtomically(script, "").ok());
  std::vector<std::string> warnings;
  EXPECT_FALSE(CheckFiles(manifest_, std::nullopt, &warnings, SeenFrom::kMachine, NeededFiles::kAll, {}, {},
                          {}, EditedFiles::kWarn)
                   .ok())
      << "it may just be written anew";
}

TEST_F(CheckFilesTest, WhatCanNotBeToldOfAFileThatWasWrittenToIsSaid) {
  const std::string data = Make("data", 200'000);
  Know(data, 200'000);
  const UniqueFd fd = OpenFile(data, O_WRONLY).value();
  ASSERT_EQ(::pwrite(fd.get(), "y", 1, 82'660), 1);  // of which no page is compared
  std::vector<std::string> warnings;
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr(data + ", which the job only reads, was written to since"));
  // One of many, of which no more is known.
  manifest_.mutable_files(0)->clear_beginning();
  warnings.clear();
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("another time of modification"));
}

TEST_F(CheckFilesTest, WhatItReadsMayChangeWhereItIsMeantTo) {
  const std::string data = Make("data", 100);
  std::string database("SQLite format 3\0", 16);
  database.resize(100, 'x');
  ASSERT_TRUE(WriteFileAtomically(data, database).ok());
  Know(data, 100);
  database[50] = 'y';
  ASSERT_TRUE(WriteFileAtomically(data, database).ok());
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &ignored_).ok());
  // The job itself writes it, through another descriptor.
  const std::string own = Make("own", 10);
  Know(own, 10);
  Need(own, 10);
  manifest_.mutable_files(manifest_.files_size() - 1)->set_written(true);
  ASSERT_TRUE(WriteFileAtomically(own, "yyyyyyyyyy").ok());
  EXPECT_TRUE(CheckFiles(manifest_, std::nullopt, &ignored_).ok());
  EXPECT_TRUE(ignored_.empty());
}

TEST_F(CheckFilesTest, BeforeARollBackWhatItMendsIsNotLookedAt) {
  const std::string written = folder_.path() + "/work/written", read = Make("read", 20);
  manifest_.set_working_directory(folder_.path() + "/work");
  manifest_.add_written_files()->set_path(written);
  Need(written, 10);
  const auto before = [this] {
    return CheckFiles(manifest_, std::nullopt, &ignored_, SeenFrom::kMachine, NeededFiles::kBeyondRollBack);
  };
  EXPECT_TRUE(before().ok()) << before();
  EXPECT_THAT(Refusal(), HasSubstr("/work is gone"));
  Need(read, 10);
  EXPECT_THAT(std::string(before().message()), AllOf(HasSubstr(read), Not(HasSubstr("/work"))));
  manifest_.set_working_directory(folder_.path() + "/wor");
  EXPECT_THAT(std::string(before().message()), HasSubstr("/wor is gone"));
}

TEST_F(CheckFilesTest, ManyProblemsAreCounted) {
  for (int i = 0; i < 7; ++i) Need(folder_.path() + "/gone" + std::to_string(i), 1);
  EXPECT_THAT(Refusal(), HasSubstr("and 3 more"));
}

TEST(CheckMemoryTest, MoreThanThereIs) {
  EXPECT_TRUE(CheckMemory(4096, ::getpid()).ok());
  absl::Status status = CheckMemory(uint64_t{1} << 60, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace
}  // namespace rekindle::restore
