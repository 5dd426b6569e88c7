#include "ckpt/written_files.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "base/file.h"
#include "base/test_child.h"
#include "criu/test_images.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

using store::kPageSize;
using store::StatusOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;

class WrittenFilesTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    arena_ = StagingArena::Create(0, 64u << 20, folder_->path()).value();
    // Content only where a test wants it.
    options_.small_bytes = 0;
    options_.new_until_age = absl::ZeroDuration();
  }

  std::string Make(const std::string& name, const std::string& content) {
    std::string path = folder_->path() + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(path, content, 0640).ok());
    return path;
  }

  // As CRIU records a descriptor.
  uint32_t Open(const std::string& path, uint64_t size, int flags, uint64_t position) {
    const uint32_t id = static_cast<uint32_t>(open_.size()) + 1;
    open_.push_back({id, path, size, static_cast<uint32_t>(flags), position});
    return id;
  }

  // A shared mapping of the file with this number, behind the last one.
  criu::Vma Mapping(uint32_t id, int prot, int file_flags) {
    criu::Vma area;
    area.start = mapped_until_;
    area.end = mapped_until_ += 0x10000;
    area.shmid = id;
    area.prot = static_cast<uint32_t>(prot);
    area.flags = MAP_SHARED;
    area.status = 1u << 0 | 1u << 7;
    area.file_flags = static_cast<uint32_t>(file_flags);
    return area;
  }

  WrittenFiles Look() {
    criu_files_["files.img"] = criu::MakeFiles(open_);
    auto written = LookAtWrittenFiles(criu_files_, options_, arena_.get());
    EXPECT_TRUE(written.ok()) << written.status();
    return written.ok() ? *std::move(written) : WrittenFiles();
  }

  std::vector<std::string> Paths(const WrittenFiles& written) const {
    std::vector<std::string> paths;
    for (const v1::WrittenFile& file : written.files)
      paths.push_back(file.path().substr(folder_->path().size() + 1));
    return paths;
  }

  std::vector<criu::TestFile> open_;
  uint64_t mapped_until_ = 0x10000;
  std::map<std::string, std::string> criu_files_;
  WrittenFilesOptions options_;
  std::unique_ptr<StagingArena> arena_;
};

TEST_F(WrittenFilesTest, WhatIsOpenForWritingIsRecordedAsItIs) {
  std::string log = Make("log", "0123456789");
  ASSERT_EQ(::chmod(log.c_str(), 0604), 0);
  timespec times[2] = {{1, 0}, {1700000000, 123456789}};
  ASSERT_EQ(::utimensat(AT_FDCWD, log.c_str(), times, 0), 0);
  // CRIU's size is that of the freeze.
  Open(log, 8, O_WRONLY | O_APPEND, 3);
  Open(Make("read", "x"), 1, O_RDONLY, 0);
  Open("/dev/null", 0, O_RDWR, 0);
  Open("/proc/self/oom_score_adj", 0, O_WRONLY, 0);
  Open(folder_->path() + "/gone", 5, O_WRONLY, 5);
  WrittenFiles written = Look();
  ASSERT_THAT(Paths(written), ElementsAre("log"));
  const v1::WrittenFile& file = written.files[0];
  struct stat info;
  ASSERT_EQ(::stat(log.c_str(), &info), 0);
  EXPECT_EQ(file.size(), 8u);
  EXPECT_EQ(file.inode(), info.st_ino);
  EXPECT_EQ(file.device(), info.st_dev);
  EXPECT_EQ(file.modified_ns(), 1700000000123456789);
  EXPECT_EQ(file.mode(), 0604u);
  EXPECT_EQ(file.uid(), ::geteuid());
  EXPECT_EQ(file.gid(), ::getegid());
  EXPECT_FALSE(file.in_place());
  EXPECT_FALSE(file.is_new());
  EXPECT_EQ(file.born_ns(), BornUnixNanos(AT_FDCWD, log, 0));
  EXPECT_THAT(written.contents, IsEmpty());
}

struct PlaceCase {
  const char* name;
  int flags;
  uint64_t position;
  bool in_place;
};

class WritesInPlaceTest : public WrittenFilesTest, public testing::WithParamInterface<PlaceCase> {};

TEST_P(WritesInPlaceTest, ByFlagsAndPosition) {
  Open(Make("file", "0123456789"), 10, GetParam().flags, GetParam().position);
  WrittenFiles written = Look();
  ASSERT_THAT(written.files, SizeIs(1));
  EXPECT_EQ(written.files[0].in_place(), GetParam().in_place);
}

INSTANTIATE_TEST_SUITE_P(All, WritesInPlaceTest,
                         testing::Values(PlaceCase{"Appending", O_WRONLY | O_APPEND, 0, false},
                                         PlaceCase{"AppendingAndReading", O_RDWR | O_APPEND, 4, false},
                                         PlaceCase{"AtTheEnd", O_WRONLY, 10, false},
                                         PlaceCase{"BeforeTheEnd", O_WRONLY, 9, true},
                                         PlaceCase{"BehindTheEnd", O_WRONLY, 11, true},
                                         // It may have been written with pwrite.
                                         PlaceCase{"ReadingAtTheEnd", O_RDWR, 10, true}),
                         [](const auto& test) { return test.param.name; });

TEST_F(WrittenFilesTest, OneFileByManyNamesAndDescriptorsIsRecordedOnce) {
  std::string a = Make("b", "0123456789"), link = folder_->path() + "/a";
  ASSERT_EQ(::link(a.c_str(), link.c_str()), 0);
  Open(a, 10, O_WRONLY | O_APPEND, 0);
  Open(link, 10, O_WRONLY, 10);
  Open(a, 10, O_WRONLY, 2);  // one is enough
  WrittenFiles written = Look();
  ASSERT_THAT(Paths(written), ElementsAre("a"));
  EXPECT_TRUE(written.files[0].in_place());
}

TEST_F(WrittenFilesTest, MappingsThatMayBeWrittenCount) {
  // CRIU gives mapped files no flags of their own.
  const uint32_t written_id = Open(Make("written", "0123456789"), 10, 0, 0);
  const uint32_t may_id = Open(Make("may be", "0123456789"), 10, 0, 0);
  const uint32_t read_id = Open(Make("read", "0123456789"), 10, 0, 0);
  criu_files_["mm-70.img"] =
      criu::MakeMm({Mapping(written_id, PROT_READ | PROT_WRITE, 0), Mapping(read_id, PROT_READ, O_RDONLY)});
  criu_files_["mm-71.img"] = criu::MakeMm({Mapping(may_id, PROT_READ, O_RDWR)});
  WrittenFiles written = Look();
  ASSERT_THAT(Paths(written), ElementsAre("may be", "written"));
  for (const v1::WrittenFile& file : written.files) {
    EXPECT_TRUE(file.in_place());
    EXPECT_EQ(file.modified_ns(), 0) << "a mapping may be written without the time changing";
  }
}

TEST_F(WrittenFilesTest, DeletedFilesAndOthersInTheirPlaceAreNotTouched) {
  Open(Make("deleted", "x"), 1, O_WRONLY, 1);
  std::string target = Make("target", "x"), link = folder_->path() + "/link";
  ASSERT_EQ(::symlink(target.c_str(), link.c_str()), 0);
  Open(link, 1, O_WRONLY, 1);
  Open(folder_->path(), 1, O_WRONLY, 1);
  criu_files_["remap-fpath.img"] = criu::MakeGhosts({1});
  EXPECT_THAT(Paths(Look()), IsEmpty());
}

// As by whoever rotates logs, in the middle of a capture.
TEST_F(WrittenFilesTest, OneThatHasGoneSinceCriuLookedIsRecorded) {
  options_.small_bytes = options_.small_limit_bytes = 100;
  options_.pids = {::getpid()};
  // As the kernel tells their names.
  const std::string log = std::filesystem::canonical(Make("log", "0123456789")),
                    other = std::filesystem::canonical(Make("other", "x"));
  const auto file = OpenFile(log, O_WRONLY | O_APPEND);
  ASSERT_TRUE(file.ok());
  struct stat info;
  ASSERT_EQ(::fstat(file->get(), &info), 0);
  Open(log, 8, O_WRONLY | O_APPEND, 8);
  Open(other, 1, O_WRONLY | O_APPEND, 1);  // nobody has it open
  ASSERT_EQ(::unlink(log.c_str()), 0);
  ASSERT_EQ(::unlink(other.c_str()), 0);
  const WrittenFiles written = Look();
  ASSERT_THAT(written.files, SizeIs(1));
  EXPECT_EQ(written.files[0].path(), log);
  EXPECT_EQ(written.files[0].size(), 8u);
  EXPECT_EQ(written.files[0].inode(), info.st_ino);
  EXPECT_FALSE(written.files[0].nameless());
  EXPECT_THAT(written.contents, ElementsAre(Key(0)));
}

// The oldest log, which is removed at each rotation: the name does not say which of them is meant.
TEST_F(WrittenFilesTest, OfSeveralThatHaveGoneNoneIsTakenForAnother) {
  options_.pids = {::getpid()};
  const auto open = [&](const std::string& name) {
    const std::string path = std::filesystem::canonical(Make(name, "x"));
    auto file = OpenFile(path, O_WRONLY | O_APPEND);
    EXPECT_TRUE(file.ok());
    return std::pair(path, *std::move(file));
  };
  const auto [oldest, first] = open("log.5");
  ASSERT_EQ(::unlink(oldest.c_str()), 0);
  const auto [same, second] = open("log.5");
  const auto [replaced, old] = open("latest");
  ASSERT_EQ(::unlink(replaced.c_str()), 0);
  const auto [latest, present] = open("latest");
  Open(same, 1, O_WRONLY | O_APPEND, 1);
  Open(latest, 1, O_WRONLY | O_APPEND, 1);
  ASSERT_EQ(::unlink(same.c_str()), 0);
  struct stat info;
  ASSERT_EQ(::fstat(present.get(), &info), 0);
  const WrittenFiles written = Look();
  ASSERT_THAT(written.files, SizeIs(1));
  EXPECT_EQ(written.files[0].path(), latest);
  EXPECT_EQ(written.files[0].inode(), info.st_ino);
}

// However much it is: nothing else has the content.
TEST_F(WrittenFilesTest, SharedMemoryIsMemory) {
  auto shared = TemporaryDirectory::Make("/dev/shm", "written_files_test.");
  if (!shared.ok()) GTEST_SKIP() << shared.status();
  const std::string content = store::MakePages(3, 9);
  auto make = [&](const std::string& name) {
    EXPECT_TRUE(WriteFileAtomically(shared->path() + "/" + name, content, 0600).ok());
    return shared->path() + "/" + name;
  };
  const uint32_t mapped = Open(make("a"), content.size(), 0, 0);
  Open(make("b"), content.size(), O_RDWR, 0);
  const uint32_t elsewhere = Open(Make("c", content), content.size(), 0, 0);
  const int both = PROT_READ | PROT_WRITE;
  criu_files_["mm-70.img"] = criu::MakeMm({Mapping(mapped, both, O_RDWR), Mapping(elsewhere, both, O_RDWR)});
  options_.small_limit_bytes = options_.contents_limit_bytes = 0;
  WrittenFiles written = Look();
  ASSERT_THAT(written.files, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    const v1::WrittenFile& file = written.files[i];
    const bool is_memory = file.path() == shared->path() + "/a";
    EXPECT_EQ(file.shared_memory(), is_memory) << file.path();
    EXPECT_EQ(written.contents.contains(i), is_memory) << file.path();
  }
  EXPECT_THAT(written.warnings, IsEmpty());

  options_.ignore_paths = {shared->path()};
  EXPECT_THAT(Look().contents, IsEmpty());

  // Without a name it has one in the images alone, and no path to ignore means it.
  options_.nameless[shared->path() + "/none"] = make("source");
  Open(shared->path() + "/none", content.size(), O_RDONLY, 0);
  written = Look();
  ASSERT_THAT(written.contents, SizeIs(1));
  const v1::WrittenFile& nameless = written.files[written.contents.begin()->first];
  EXPECT_TRUE(nameless.nameless());
  EXPECT_TRUE(nameless.shared_memory());
  EXPECT_EQ(nameless.path(), shared->path() + "/none");
}

// The default action of SIGIO would end the test.
TEST_F(WrittenFilesTest, FilesWithLeasesAreNotOpened) {
  const std::string path = Make("leased", "0123456789");
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  if (::fcntl(file.get(), F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "no leases on this file system";
  Open(path, 10, O_WRONLY, 10);
  options_.small_bytes = 100;
  WrittenFiles written = Look();
  EXPECT_THAT(Paths(written), ElementsAre("leased"));
  EXPECT_THAT(written.contents, IsEmpty());
  EXPECT_EQ(::fcntl(file.get(), F_GETLEASE), F_WRLCK);
}

TEST_F(WrittenFilesTest, DamagedImagesAreSaid) {
  criu_files_["files.img"] = "no image";
  auto written = LookAtWrittenFiles(criu_files_, options_, arena_.get());
  EXPECT_EQ(written.status().code(), absl::StatusCode::kDataLoss) << written.status();
  EXPECT_TRUE(LookAtWrittenFiles({}, options_, arena_.get()).ok());
}

TEST_F(WrittenFilesTest, ContentsOfFilesWrittenInPlaceGoIntoTheImage) {
  std::string bytes = store::MakePages(3, 7).substr(0, 2 * kPageSize + 100);
  Open(Make("data", bytes), bytes.size(), O_RDWR, 5);
  Open(Make("log", "0123456789"), 10, O_WRONLY | O_APPEND, 0);
  Open(Make("ignored", "0123456789"), 10, O_RDWR, 0);
  // A name that only begins like an ignored one.
  Open(Make("ignored too", "0123456789"), 10, O_RDWR, 0);
  std::string sparse = Make("sparse", "");
  UniqueFd fd = OpenFile(sparse, O_WRONLY).value();
  ASSERT_EQ(::ftruncate(fd.get(), 100 << 20), 0);
  ASSERT_EQ(::pwrite(fd.get(), "y", 1, 50 << 20), 1);
  Open(sparse, 100 << 20, O_RDWR, 0);
  std::string hole = Make("hole", "");
  ASSERT_EQ(::truncate(hole.c_str(), 9000), 0);
  Open(hole, 9000, O_RDWR, 0);
  options_.contents = true;
  options_.ignore_paths = {folder_->path() + "/ignored/"};
  WrittenFiles written = Look();
  ASSERT_THAT(Paths(written), ElementsAre("data", "hole", "ignored", "ignored too", "log", "sparse"));
  EXPECT_THAT(written.warnings, IsEmpty());

  auto writer = store_->NewImage(store::Named("job:1"));
  RK_ASSERT_OK(writer);
  v1::JobManifest manifest;
  RK_ASSERT_OK(AddToImage(written, **writer, &manifest));
  RK_ASSERT_OK((*writer)->Commit());
  auto image = store_->OpenImage("job:1");
  RK_ASSERT_OK(image);
  ASSERT_EQ(manifest.written_files_size(), 6);
  EXPECT_EQ(manifest.written_files(0).content_object(), "files/0");
  EXPECT_EQ(manifest.written_files(1).content_object(), "files/1") << "all of it a hole, and that is known";
  EXPECT_EQ(manifest.written_files(2).content_object(), "");
  EXPECT_EQ(manifest.written_files(3).content_object(), "files/3");
  EXPECT_EQ(manifest.written_files(4).content_object(), "") << "what is appended to is cut off alone";

  std::string stored(3 * kPageSize, '?');
  RK_ASSERT_OK(
      (*image)->ReadPages("files/0", 0, {reinterpret_cast<std::byte*>(stored.data()), stored.size()}));
  EXPECT_TRUE(stored == bytes + std::string(3 * kPageSize - bytes.size(), '\0'));
  auto runs = (*image)->Runs("files/5");
  RK_ASSERT_OK(runs);
  uint64_t pages = 0;
  for (const store::PageRun& run : *runs) pages += run.pages;
  EXPECT_LE(pages, 16u) << "holes take no room";
  std::string page(kPageSize, '?');
  RK_ASSERT_OK(
      (*image)->ReadPages("files/5", 50 << 20, {reinterpret_cast<std::byte*>(page.data()), kPageSize}));
  EXPECT_TRUE(page == "y" + std::string(kPageSize - 1, '\0'));
}

TEST_F(WrittenFilesTest, LargeContentsAreTheirFiles) {
  const std::string bytes = store::MakePages(12 << 10, 7).substr(0, (48 << 20) - 100);
  Open(Make("data", bytes), bytes.size(), O_RDWR, 5);
  options_.contents = true;
  const WrittenFiles written = Look();
  EXPECT_THAT(written.warnings, IsEmpty());
  ASSERT_THAT(written.contents, ElementsAre(Key(0u)));
  std::string copied;
  for (const CopiedRange& range : written.contents.at(0)) {
    ASSERT_EQ(range.address, copied.size());
    copied.append(reinterpret_cast<const char*>(range.bytes.data()), range.bytes.size());
  }
  EXPECT_TRUE(copied == bytes + std::string(100, '\0'));
}

TEST_F(WrittenFilesTest, TooMuchContentIsLeftOutAndSaid) {
  Open(Make("a", std::string(3 * kPageSize, 'a')), 3 * kPageSize, O_RDWR, 0);
  Open(Make("b", std::string(3 * kPageSize, 'b')), 3 * kPageSize, O_RDWR, 0);
  Open(Make("c", std::string(kPageSize, 'c')), kPageSize, O_RDWR, 0);
  options_.contents = true;
  options_.contents_limit_bytes = 4 * kPageSize;
  WrittenFiles written = Look();
  EXPECT_THAT(Paths(written), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(written.contents.contains(0));
  EXPECT_FALSE(written.contents.contains(1));
  EXPECT_TRUE(written.contents.contains(2)) << "what fits still goes in";
  EXPECT_THAT(written.warnings, ElementsAre(AllOf(HasSubstr("/b is not in the image"), HasSubstr("12.0 KiB"),
                                                  HasSubstr("16.0 KiB"), HasSubstr("--ignore-path"))));
}

TEST_F(WrittenFilesTest, ContentsOfSmallFilesGoInUnaskedAsLongAsTheyFit) {
  options_.small_bytes = 2 * kPageSize;
  options_.small_limit_bytes = 3 * kPageSize;
  auto open_log = [&](const std::string& name, uint64_t pages) {
    Open(Make(name, std::string(pages * kPageSize, 'x')), pages * kPageSize, O_WRONLY | O_APPEND, 0);
  };
  open_log("a", 2);
  open_log("b", 2);
  open_log("c", 1);
  open_log("large", 3);
  Open(Make("database", "x"), 1, O_RDWR, 0);
  options_.ignore_paths = {folder_->path() + "/database"};
  WrittenFiles written = Look();
  ASSERT_THAT(Paths(written), ElementsAre("a", "b", "c", "database", "large"));
  EXPECT_THAT(written.contents, ElementsAre(Key(0u), Key(2u)));
  EXPECT_THAT(written.warnings, IsEmpty());
}

TEST_F(WrittenFilesTest, ContentsOfNewFilesGoInUnasked) {
  const std::string path = Make("checkpoint.tmp", std::string(3 * kPageSize, 'x'));
  if (BornUnixNanos(AT_FDCWD, path, 0) == 0) GTEST_SKIP() << "the file system does not tell";
  Open(path, 3 * kPageSize, O_WRONLY, 3 * kPageSize);
  Open(Make("database", std::string(2 * kPageSize, 'y')), 2 * kPageSize, O_RDWR, 0);
  options_.new_until_age = absl::Seconds(60);
  WrittenFiles written = Look();
  ASSERT_THAT(Paths(written), ElementsAre("checkpoint.tmp", "database"));
  for (const v1::WrittenFile& file : written.files) EXPECT_TRUE(file.is_new());
  EXPECT_THAT(written.contents, ElementsAre(Key(0u), Key(1u)));

  options_.contents_limit_bytes = 2 * kPageSize;
  written = Look();
  EXPECT_THAT(written.contents, ElementsAre(Key(1u)));
  EXPECT_THAT(written.warnings, ElementsAre(HasSubstr("/checkpoint.tmp is not in the image")));

  options_.contents_limit_bytes = 4 * kPageSize;
  options_.contents = true;
  written = Look();
  EXPECT_THAT(written.contents, ElementsAre(Key(1u))) << "what was asked for comes first";
  EXPECT_THAT(written.warnings, ElementsAre(HasSubstr("/checkpoint.tmp is not in the image")));
}

TEST_F(WrittenFilesTest, DatabasesGoInUnaskedAndTheirLogsFirst) {
  const auto open_in_place = [&](const std::string& name, uint64_t pages) {
    Open(Make(name, std::string(pages * kPageSize, 'x')), pages * kPageSize, O_RDWR, 0);
  };
  for (const char* name : {"a", "a-journal", "b", "b-shm", "b-wal", "c", "d-wal"}) open_in_place(name, 2);
  options_.databases_limit_bytes = 10 * kPageSize;
  const auto contents = [&] {
    WrittenFiles written = Look();
    EXPECT_THAT(written.warnings, IsEmpty());
    const std::vector<std::string> paths = Paths(written);
    std::vector<std::string> names;
    for (const auto& [index, content] : written.contents) names.push_back(paths[index]);
    return names;
  };
  EXPECT_THAT(contents(), ElementsAre("a", "a-journal", "b", "b-shm", "b-wal"));
  options_.databases_limit_bytes = 8 * kPageSize;
  EXPECT_THAT(contents(), ElementsAre("a", "a-journal", "b-shm", "b-wal"));
  options_.small_bytes = 2 * kPageSize;
  EXPECT_THAT(contents(), ElementsAre("a", "a-journal", "b", "b-shm", "b-wal", "c", "d-wal"));
}

TEST_F(WrittenFilesTest, FoldersAreRecordedAsTheyAre) {
  ASSERT_EQ(::mkdir((folder_->path() + "/folder").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((folder_->path() + "/folder").c_str(), 01751), 0);
  Open(Make("folder/log", "x"), 1, O_WRONLY, 0);
  WrittenFiles written = Look();
  ASSERT_THAT(written.files, SizeIs(1));
  const v1::FolderOfFile& folder = written.files[0].folder();
  EXPECT_EQ(folder.mode(), 01751u);
  EXPECT_EQ(folder.device(), written.files[0].device());
  EXPECT_EQ(folder.uid(), ::geteuid());
}

TEST_F(WrittenFilesTest, WhatTheJobMayNotSeeIsNotMissedUnasked) {
  Open(Make("small", "x"), 1, O_WRONLY | O_APPEND, 0);
  Open(Make("new", std::string(3 * kPageSize, 'x')), 3 * kPageSize, O_WRONLY | O_APPEND, 0);
  options_.small_bytes = kPageSize;
  options_.new_until_age = absl::Seconds(60);
  options_.readable = ReadableFiles(::geteuid() + 1, {});
  WrittenFiles written = Look();
  EXPECT_THAT(written.contents, IsEmpty());
  EXPECT_THAT(written.warnings, IsEmpty());
}

TEST_F(WrittenFilesTest, NoRoomToCopyLeavesTheContentOut) {
  Open(Make("a", std::string(kPageSize, 'a')), kPageSize, O_RDWR, 0);
  options_.contents = true;
  arena_ = StagingArena::Create(0, 0, folder_->path() + "/absent").value();
  WrittenFiles written = Look();
  EXPECT_THAT(Paths(written), ElementsAre("a"));
  EXPECT_THAT(written.contents, IsEmpty());
  EXPECT_THAT(written.warnings, ElementsAre(HasSubstr("/a is not in the image")));
}

TEST_F(WrittenFilesTest, ContentThatTheJobMayNotSeeStaysOut) {
  std::string path = Make("a", std::string(kPageSize, 'a'));
  Open(path, kPageSize, O_WRONLY, 0);
  options_.contents = true;
  options_.readable = ReadableFiles(::geteuid() + 1, {});
  WrittenFiles written = Look();
  EXPECT_THAT(written.warnings, ElementsAre(HasSubstr("the job can't read it")));
  options_.readable = ReadableFiles();
  EXPECT_THAT(Look().contents, SizeIs(1));
  options_.readable = ReadableFiles(::geteuid(), {});
  EXPECT_THAT(Look().contents, SizeIs(1)) << "its own file";
  const UniqueFd file = OpenFile(path, O_RDWR).value();
  options_.readable = ReadableFiles(::geteuid() + 1, {::getpid()});
  EXPECT_THAT(Look().contents, SizeIs(1)) << "open for reading";
}

// As a job's owner may do while it stands still, to have root read what he can't.
TEST_F(WrittenFilesTest, AnotherFileInThePlaceOfTheJobsOwnStaysOut) {
  const std::string path = Make("d.txt", std::string(kPageSize, 'a'));
  const std::string secret = Make("secret", std::string(kPageSize, 's'));
  const UniqueFd open_file = OpenFile(path, O_RDWR).value();
  Open(path, kPageSize, O_RDWR, 0);
  options_.contents = true;
  options_.readable = ReadableFiles(::geteuid() + 1, {::getpid()});
  ASSERT_THAT(Look().contents, SizeIs(1));

  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::link(secret.c_str(), path.c_str()), 0);
  WrittenFiles written = Look();
  EXPECT_THAT(written.contents, IsEmpty());
  EXPECT_THAT(written.warnings, ElementsAre(HasSubstr("the job can't read it")));

  // By a folder on the way.
  ASSERT_EQ(::mkdir((folder_->path() + "/there").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("there", (folder_->path() + "/way").c_str()), 0);
  Make("there/file", std::string(kPageSize, 's'));
  open_.clear();
  Open(folder_->path() + "/way/file", kPageSize, O_RDWR, 0);
  options_.readable = ReadableFiles();
  EXPECT_THAT(Look().files, IsEmpty());
}

TEST_F(WrittenFilesTest, TheEstimateCountsEachFileOnce) {
  std::string path = Make("a", std::string(3 * kPageSize, 'a'));
  std::string read = Make("b", std::string(7 * kPageSize, 'b'));
  auto open_all = [&] {
    for (int i = 0; i < 2; ++i) {
      if (::open(path.c_str(), O_RDWR) < 0 || ::open(read.c_str(), O_RDONLY) < 0) return false;
    }
    return true;
  };
  TestChild child(open_all), other(open_all);
  ASSERT_TRUE(child.prepared() && other.prepared());
  EXPECT_EQ(EstimateContents({child.pid()}, options_), 0u) << "nothing is copied";
  options_.contents = true;
  const uint64_t without = EstimateContents({::getpid()}, options_);  // what the children have inherited
  EXPECT_EQ(EstimateContents({child.pid(), other.pid()}, options_), without + 3 * kPageSize);
  options_.contents_limit_bytes = 10;
  EXPECT_EQ(EstimateContents({child.pid()}, options_), 10u);
}

TEST_F(WrittenFilesTest, TheEstimateCountsWhatIsTakenUnasked) {
  std::string path = Make("a", std::string(3 * kPageSize, 'a'));
  TestChild child([&] { return ::open(path.c_str(), O_WRONLY | O_APPEND) >= 0; });
  ASSERT_TRUE(child.prepared());
  auto estimate = [&] {  // less what the child has inherited
    return EstimateContents({child.pid()}, options_) - EstimateContents({::getpid()}, options_);
  };
  EXPECT_EQ(estimate(), 0u);
  options_.small_bytes = 3 * kPageSize;
  EXPECT_EQ(estimate(), 3 * kPageSize);
  options_.small_bytes = 3 * kPageSize - 1;
  EXPECT_EQ(estimate(), 0u);
  if (BornUnixNanos(AT_FDCWD, path, 0) == 0) GTEST_SKIP() << "the file system does not tell";
  options_.new_until_age = absl::Seconds(60);
  EXPECT_EQ(estimate(), 3 * kPageSize);
  options_.ignore_paths = {std::filesystem::canonical(folder_->path())};  // as the kernel has it
  EXPECT_EQ(estimate(), 0u);
  options_.ignore_paths.clear();
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_EQ(estimate(), 0u) << "CRIU takes it";
}

TEST(SeeOurFilesTest, NotInAMountNamespaceOfItsOwn) {
  TestChild child;
  ASSERT_TRUE(child.prepared());
  EXPECT_TRUE(SeeOurFiles({::getpid(), child.pid()}));
  if (::geteuid() != 0) GTEST_SKIP() << "namespaces need root";
  TestChild other([] { return ::unshare(CLONE_NEWNS) == 0; });
  ASSERT_TRUE(other.prepared());
  EXPECT_FALSE(SeeOurFiles({child.pid(), other.pid()}));
}

TEST_F(WrittenFilesTest, OneThatWasBegunSinceTheImageBeforeHasItsContentThere) {
  // As torch.save() does it over one that is larger than what is small.
  const std::string save(100'000, 's');
  Open(Make("last.pt", save), save.size(), O_WRONLY, save.size());
  Open(Make("log", save), save.size(), O_WRONLY | O_APPEND, save.size());
  options_.before.emplace();
  WrittenFiles written = Look();
  ASSERT_THAT(Paths(written), ElementsAre("last.pt", "log"));
  EXPECT_THAT(written.contents, ElementsAre(Key(0)));
  EXPECT_FALSE(written.files[0].is_new());
  EXPECT_NE(written.files[0].ending(), 0u);
  // The image before has the same one, which the job goes on to write.
  options_.before = written.files;
  EXPECT_THAT(Look().contents, IsEmpty());
  options_.before->at(0).set_size(50'000);
  EXPECT_THAT(Look().contents, IsEmpty());  // all of it is alike
  // Or an earlier version of it.
  options_.before->at(0).set_ending(written.files[0].ending() ^ 1);
  EXPECT_THAT(Look().contents, ElementsAre(Key(0)));
  options_.before = written.files;
  options_.before->at(0).set_size(save.size() + 1);
  EXPECT_THAT(Look().contents, ElementsAre(Key(0)));
  options_.before = written.files;
  options_.before->at(0).clear_ending();  // of an earlier Rekindle
  EXPECT_THAT(Look().contents, IsEmpty());
}

// A program that writes the header once more, now and then, stands now there, now at the end.
TEST_F(WrittenFilesTest, OneThatWasWrittenInPlaceBeforeHasNotBegunAnew) {
  const std::string save(100'000, 's');
  const std::string path = Make("data.npy", save);
  Open(path, save.size(), O_WRONLY, 8);
  options_.before.emplace();
  const std::vector<v1::WrittenFile> before = Look().files;
  ASSERT_THAT(before, SizeIs(1));
  ASSERT_TRUE(before[0].in_place());
  options_.before = before;
  const UniqueFd fd = OpenFile(path, O_WRONLY | O_APPEND).value();
  ASSERT_TRUE(WriteFully(fd.get(), save.data(), save.size(), path).ok());
  open_.clear();
  Open(path, 2 * save.size(), O_WRONLY, 2 * save.size());
  const WrittenFiles written = Look();
  ASSERT_THAT(written.files, SizeIs(1));
  EXPECT_FALSE(written.files[0].in_place());
  EXPECT_THAT(written.contents, IsEmpty());
  // Another file, or a shorter one, is another matter.
  options_.before->at(0).set_size(2 * save.size() + 1);
  EXPECT_THAT(Look().contents, ElementsAre(Key(0)));
  options_.before = before;
  options_.before->at(0).set_born_ns(before[0].born_ns() + 1);
  EXPECT_THAT(Look().contents, ElementsAre(Key(0)));
}

TEST_F(WrittenFilesTest, EndingsAreReadBeforeTheFreeze) {
  constexpr size_t kBytes = 4 << 20;
  const std::string path = Make("log", std::string(kBytes, 'x'));
  const UniqueFd log = OpenFile(path, O_WRONLY | O_APPEND).value();
  const UniqueFd reading = OpenFile(path, O_RDONLY).value();
  ASSERT_EQ(::fsync(log.get()), 0);
  void* map = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, reading.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  const absl::Cleanup unmap = [&] { ::munmap(map, kBytes); };
  const auto last_is_there = [&] {
    unsigned char there = 0;
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    EXPECT_EQ(::mincore(static_cast<char*>(map) + kBytes - page, page, &there), 0);
    return (there & 1) != 0;
  };
  ASSERT_EQ(::posix_fadvise(reading.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  if (last_is_there()) GTEST_SKIP() << "this file system keeps all in memory";
  ReadEndingsAhead({::getpid()}, options_);
  EXPECT_TRUE(last_is_there());
}

TEST_F(WrittenFilesTest, WhatAYoungJobHasBegunIsNewWithoutAnImageBefore) {
  const std::string save(100'000, 's');
  Open(Make("last.pt", save), save.size(), O_WRONLY, save.size());
  EXPECT_THAT(Look().contents, IsEmpty());
  options_.new_until_age = absl::Seconds(60);
  const timespec then[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder_->path() + "/last.pt").c_str(), then, 0), 0);
  options_.age = absl::Seconds(59);
  EXPECT_THAT(Look().contents, ElementsAre(Key(0)));
}

TEST_F(WrittenFilesTest, TrackedFilesAreRecordedWithoutContent) {
  options_.small_bytes = 1 << 20;
  const std::string open = Make("events.open", "one");
  Open(open, 3, O_WRONLY | O_APPEND, 3);
  Make("events.closed", "two");
  TrackedFiles tracked({folder_->path() + "/events.*"}, "/", {}, false);
  options_.tracked = &tracked;
  WrittenFiles written = Look();
  ASSERT_THAT(written.files, SizeIs(2));
  const size_t closed = written.files[0].tracked() ? 0 : 1;
  EXPECT_EQ(std::filesystem::path(written.files[closed].path()).filename(), "events.closed");
  EXPECT_EQ(written.files[closed].size(), 3u);
  EXPECT_TRUE(written.files[closed].tracked());
  EXPECT_EQ(written.files[1 - closed].path(), open);
  EXPECT_FALSE(written.files[1 - closed].tracked());
  EXPECT_THAT(written.contents, ElementsAre(Key(1 - closed)));
}

}  // namespace
}  // namespace rekindle::ckpt
