// The catalog alone: atomicity, several processes, damage, full and read-only file systems. No test here may
// have threads when it forks.

#include "dedup_store/catalog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "base/log.h"
#include "dedup_store/catalog_log.h"
#include "dedup_store/catalog_testing.h"
#include "dedup_store/cow_map.h"
#include "dedup_store/hooked_disk.h"
#include "dedup_store/place_step.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

TEST(CowMap, IsAMapWhoseCopiesStayAsTheyWere) {
  std::mt19937_64 random(1);
  std::map<uint64_t, uint64_t> model, old_model;
  CowMap<uint64_t, uint64_t> map, old;
  auto expect_equal = [](const auto& m, const auto& expected) {
    std::map<uint64_t, uint64_t> got;
    m.Scan(0, [&](uint64_t key, uint64_t value) { return got.emplace(key, value).second; });
    EXPECT_EQ(got, expected);
    EXPECT_EQ(m.size(), expected.size());
  };
  for (uint64_t i = 0; i < 30000; ++i) {
    if (i % 3000 == 0) {
      expect_equal(old, old_model);
      old = map;
      old_model = model;
    }
    const uint64_t owner = 1 + i / 3000, key = i < 1000 ? i : random() % 3000;
    if (random() % 20 < (i < 20000 ? 8 : 13) && i >= 1000) {
      map.Erase(key, owner);
      model.erase(key);
    } else {
      map.Put(key, i, owner);
      model[key] = i;
    }
    const uint64_t wanted = random() % 3100;
    const uint64_t* found = map.Find(wanted);
    auto expected = model.find(wanted);
    ASSERT_EQ(found != nullptr, expected != model.end());
    if (found != nullptr) {
      EXPECT_EQ(*found, expected->second);
    }
    auto first = model.lower_bound(wanted);
    map.Scan(wanted, [&](uint64_t k, uint64_t) {
      EXPECT_EQ(k, first->first);
      return false;
    });
  }
  expect_equal(map, model);
  expect_equal(old, old_model);
}

TEST_F(CatalogTest, ReadsBackWhatWasCommitted) {
  auto catalog = Open();
  for (int i = 1; i <= 9; ++i) RK_ASSERT_OK(PutNumbered(*catalog, i));
  RK_ASSERT_OK(RemoveNumbered(*catalog, 4));
  IndexRecord index;
  index.id = ~uint64_t{0};
  index.entries = 5;
  index.file_bytes = 6;
  DeadRecord dead;
  dead.given_back = true;
  dead.dead = {true, false, true, false, false, false, false, false, true};
  RK_ASSERT_OK(catalog->Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_RETURN_IF_ERROR(txn.PutIndex(index));
    RK_RETURN_IF_ERROR(txn.PutDead(1001, dead));
    RK_RETURN_IF_ERROR(txn.PutDead(1002, dead));
    return txn.DeletePack(77);
  }));
  // A reference leads to one image.
  RK_ASSERT_OK(catalog->Update([&](Catalog::Txn& txn) -> absl::Status {
    ImageRecord record = NumberedRecord(5);
    RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
    RK_RETURN_IF_ERROR(txn.PutImage(record));
    EXPECT_EQ((*txn.FindReference("image:5"))->id, record.id);
    return absl::OkStatus();
  }));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(NumbersIn(*catalog), "1 2 3 5 6 7 8 9");
    auto txn = catalog->Read();
    ASSERT_EQ(txn->Indexes()->size(), 1u);
    EXPECT_EQ(txn->Indexes()->front().Encode(), index.Encode());
    EXPECT_EQ((*txn->FindDead(1002))->dead, dead.dead);
    EXPECT_TRUE((*txn->FindDead(1002))->given_back);
    EXPECT_FALSE(*txn->FindDead(1003));
    EXPECT_FALSE(*txn->FindImage(4));
    EXPECT_EQ(txn->ImagesAfter(9)->size(), 1u);
    EXPECT_FALSE(txn->PutImage(NumberedRecord(1)).ok());
    EXPECT_GT(txn->bytes_used(), 1000u);
    catalog.reset();
    catalog = Open();
  }
  RK_ASSERT_OK(catalog->Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_RETURN_IF_ERROR(txn.DeleteIndex(index.id));
    EXPECT_EQ(*txn.NextImageId(), 11u);
    return txn.DeletePack(1001);
  }));
  EXPECT_FALSE(*catalog->Read()->FindDead(1001));
  EXPECT_TRUE(catalog->Problems().empty());
}

TEST_F(CatalogTest, AChangeThatFailsLeavesNothing) {
  auto catalog = Open();
  RK_ASSERT_OK(PutNumbered(*catalog, 1));
  const Files before = Save();
  auto status = catalog->Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_RETURN_IF_ERROR(txn.DeleteImage((*txn.Images())[0]));
    EXPECT_TRUE(txn.Images()->empty());
    return absl::AbortedError("on second thought");
  });
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_EQ(NumbersIn(*catalog), "1");
  EXPECT_TRUE(Save() == before);
}

TEST_F(CatalogTest, AReaderKeepsWhatItSaw) {
  auto catalog = Open();
  RK_ASSERT_OK(PutNumbered(*catalog, 1));
  auto old = catalog->Read();
  RK_ASSERT_OK(catalog->Update([&](Catalog::Txn& txn) -> absl::Status {
    ImageRecord record = NumberedRecord(2);
    RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
    RK_RETURN_IF_ERROR(txn.PutImage(record));
    RK_ASSIGN_OR_RETURN(Catalog::Txn meanwhile, catalog->Read());
    EXPECT_EQ(meanwhile.Images()->size(), 1u);
    EXPECT_EQ(txn.Images()->size(), 2u);
    return absl::OkStatus();
  }));
  EXPECT_EQ(old->Images()->size(), 1u);
  EXPECT_EQ(catalog->Read()->Images()->size(), 2u);
}

TEST_F(CatalogTest, ThreadsReadAndWriteAtOnce) {
  auto catalog = Open();
  std::atomic<bool> done{false};
  std::atomic<int> reads{0};  // that saw something new
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      // The second waits for a reader: else all may be written before the first of them looks.
      while (t == 1 && reads == 0) std::this_thread::yield();
      for (int i = 0; i < 40; ++i) {
        EXPECT_TRUE(PutNumbered(*catalog, t * 100 + i).ok());
        EXPECT_TRUE(PutBulk(*catalog, 40000).ok());
        if (i % 4 == 3) {
          EXPECT_TRUE(RemoveNumbered(*catalog, t * 100 + i - 1).ok());
        }
      }
    });
  }
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      size_t last = 0;
      while (!done) {
        auto txn = catalog->Read();
        ASSERT_TRUE(txn.ok()) << txn.status();
        auto images = txn->Images();
        EXPECT_EQ(txn->Packs()->size(), images->size());
        for (const ImageRecord& record : *images) EXPECT_FALSE(record.info.reference.empty());
        reads += last != images->size();
        last = images->size();
        EXPECT_TRUE(catalog->Problems().empty());
      }
    });
  }
  threads[0].join();
  threads[1].join();
  done = true;
  threads[2].join();
  threads[3].join();
  EXPECT_EQ(catalog->Read()->Images()->size(), 60u);
}

TEST_F(CatalogTest, SeveralProcessesCommitAtOnce) {
  // The log is written anew several times meanwhile.
  auto worker = [this](int first) {
    return StartChild([this, first]() -> std::string {
      auto catalog = Catalog::Open(path_, RealBlockIo());
      if (!catalog.ok()) return catalog.status().ToString();
      for (int i = 0; i < 60; ++i) {
        if (auto status = PutNumbered(**catalog, first + i); !status.ok()) return status.ToString();
        if (auto status = PutBulk(**catalog, 50000); !status.ok()) return status.ToString();
        auto txn = (*catalog)->Read();
        if (!txn.ok()) return txn.status().ToString();
        if (!*txn->FindReference(absl::StrCat("image:", first + i))) return "its own image is missing";
        if (i % 3 == 2) {
          if (auto status = RemoveNumbered(**catalog, first + i); !status.ok()) return status.ToString();
        }
      }
      return "";
    });
  };
  auto reader = Open();
  std::vector<pid_t> pids;
  for (int first : {1000, 2000, 3000}) pids.push_back(worker(first));
  size_t seen = 0;
  for (int i = 0; i < 2000; ++i) {
    auto txn = reader->Read();
    RK_ASSERT_OK(txn);
    const size_t now = txn->Images()->size();
    EXPECT_GE(now + 3, seen);  // each worker removes one at a time
    seen = std::max(seen, now);
  }
  for (pid_t pid : pids) EXPECT_EQ(WaitForChild(pid), 0);
  std::set<uint64_t> ids;
  auto images = reader->Read()->Images();
  EXPECT_EQ(images->size(), 120u);
  for (const ImageRecord& record : *images) ids.insert(record.id);
  EXPECT_EQ(ids.size(), 120u);
  EXPECT_TRUE(reader->Problems().empty());
  reader.reset();
  EXPECT_EQ(Save().size(), 3u);
  EXPECT_EQ(Save().count(kA), 0u);
}

// Every byte of a small log, and what is left of it when that byte has a wrong bit.
TEST_F(CatalogTest, AFlippedBitInOneCopyLosesNothing) {
  auto catalog = Open();
  for (int i = 1; i <= 4; ++i) RK_ASSERT_OK(PutNumbered(*catalog, i));
  RK_ASSERT_OK(RemoveNumbered(*catalog, 2));
  catalog.reset();
  const Files files = Save();
  for (const char* name : {kA, kB}) {
    const size_t size = files.at(name).size();
    for (size_t at = 0; at < size; at += kPlaceStep) {
      SCOPED_TRACE(absl::StrCat(name, " at ", at));
      Files flipped = files;
      flipped[name][at] = static_cast<char>(flipped[name][at] ^ 1 << at % 8);
      Restore(flipped);
      catalog = Open();
      ASSERT_NE(catalog, nullptr);
      EXPECT_EQ(NumbersIn(*catalog), "1 3 4");
      std::vector<std::string> problems = catalog->Problems();
      ASSERT_FALSE(problems.empty());
      EXPECT_TRUE(absl::StrContains(problems[0], name)) << problems[0];
      EXPECT_TRUE(Save() == flipped);  // a reader changes nothing
      if (at % 3 == 0) {
        if (at % 2 == 0) RK_ASSERT_OK(catalog->Heal());
        catalog.reset();
        ExpectMended("1 3 4");
      }
      catalog.reset();
      if (HasFailure()) return;
    }
  }
}

TEST_F(CatalogTest, ABitFlippedInBothCopiesIsNeverMistaken) {
  auto catalog = Open();
  for (int i = 1; i <= 3; ++i) RK_ASSERT_OK(PutNumbered(*catalog, i));
  std::vector<PackRecord> packs = *catalog->Read()->Packs();
  std::vector<ImageRecord> images = *catalog->Read()->Images();
  for (ImageRecord& image : images) image.id = 0;
  catalog.reset();
  const Files files = Save();
  const std::vector<uint64_t> offsets = Offsets(files.at(kA));
  for (size_t at = 0; at < files.at(kA).size(); ++at) {
    SCOPED_TRACE(at);
    Files flipped = files;
    for (const char* name : {kA, kB}) flipped[name][at] = static_cast<char>(flipped[name][at] ^ 1 << at % 8);
    Restore(flipped);
    auto opened = Catalog::Open(path_, RealBlockIo());
    ASSERT_TRUE(absl::IsDataLoss(opened.status())) << opened.status();
    const uint64_t record =
        at < offsets[0] ? 0 : *std::prev(std::upper_bound(offsets.begin(), offsets.end(), at));
    for (const std::string& part : {std::string(kA), absl::StrCat("offset ", record), std::string("fsck")})
      EXPECT_TRUE(absl::StrContains(opened.status().message(), part)) << opened.status();
    if (at % 10 == 0) {
      auto rebuilt = Catalog::Rebuild(path_, RealBlockIo(), [&] { return Catalog::Found{packs, images}; });
      RK_ASSERT_OK(rebuilt);
      EXPECT_TRUE(*rebuilt);
      ExpectSound("1 2 3");
      ExpectMended("1 2 3");
    }
    if (HasFailure()) return;
  }
  // At different places all is still there.
  for (size_t at = kLogHeaderBytes; at < files.at(kA).size(); at += 7) {
    SCOPED_TRACE(at);
    Files flipped = files;
    flipped[kA][at] = static_cast<char>(flipped[kA][at] ^ 4);
    flipped[kB][5] = 'x';
    for (uint64_t offset : offsets)
      if (offset > at && offset < flipped[kB].size()) flipped[kB][offset + 20] ^= 1;
    Restore(flipped);
    catalog = Open();
    ASSERT_NE(catalog, nullptr);
    EXPECT_EQ(NumbersIn(*catalog), "1 2 3");
    RK_ASSERT_OK(catalog->Heal());
    catalog.reset();
    ExpectSound("1 2 3");
    if (HasFailure()) return;
  }
}

// All that a writer can leave which died at any byte.
TEST_F(CatalogTest, TornTailsAreCutOffOrCompleted) {
  auto catalog = Open();
  for (int i : {1, 2, 77}) RK_ASSERT_OK(PutNumbered(*catalog, i));
  catalog.reset();
  const Files files = Save();
  const std::string& whole = files.at(kA);
  const std::vector<uint64_t> offsets = Offsets(whole);
  const uint64_t last = offsets[offsets.size() - 2];
  int round = 0;
  auto expect = [&](const std::string& a, const std::string& b) {
    Files left = files;
    left[kA] = a;
    left[kB] = b;
    Restore(left);
    const std::string expected = a.substr(0, whole.size()) == whole ? "1 2 77" : "1 2";
    ExpectSound(expected);
    EXPECT_TRUE(Save() == left);
    if (++round % 5 == 0) ExpectMended(expected);
  };
  for (uint64_t length = last; length <= whole.size(); length += length + 1 < whole.size() ? kPlaceStep : 1) {
    SCOPED_TRACE(length);
    expect(whole.substr(0, length), whole.substr(0, last));
    expect(whole, whole.substr(0, length));
    if (HasFailure()) return;
  }
  // Blocks that were never written, in any order.
  const uint64_t first_sector = last / 512, sectors = (whole.size() + 511) / 512 - first_sector;
  for (uint64_t written = 0; written < (uint64_t{1} << sectors); ++written) {
    SCOPED_TRACE(absl::StrCat("sectors ", absl::Hex(written)));
    std::string torn = whole;
    torn.resize(whole.size() + 100, '\0');
    for (uint64_t at = last; at < torn.size(); ++at) {
      if (!(written >> (at / 512 - first_sector) & 1)) torn[at] = '\0';
    }
    expect(torn, whole.substr(0, last));
    expect(whole, torn);
    if (HasFailure()) return;
  }
  // A copy that lost more than one writer can have left unfinished is damaged.
  for (const char* name : {kA, kB}) {
    for (uint64_t length : {uint64_t{0}, uint64_t{10}, offsets[1], offsets[1] + 20}) {
      SCOPED_TRACE(absl::StrCat(name, " cut to ", length));
      Files left = files;
      left[name].resize(length);
      Restore(left);
      auto opened = Open();
      ASSERT_NE(opened, nullptr);
      EXPECT_EQ(NumbersIn(*opened), "1 2 77");
      EXPECT_FALSE(opened->Problems().empty());
      opened.reset();
      ExpectMended("1 2 77");
    }
    Files left = files;
    left.erase(name);
    Restore(left);
    auto opened = Open();
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(NumbersIn(*opened), "1 2 77");
    EXPECT_FALSE(opened->Problems().empty());
    opened.reset();
    ExpectMended("1 2 77");
  }
  Restore({{"lock", ""}});
  EXPECT_TRUE(absl::IsDataLoss(Catalog::Open(path_, RealBlockIo()).status()));
}

// A reader that stays open sees what a dead writer left as soon as it is decided, and never takes it back.
TEST_F(CatalogTest, AReaderFollowsThroughAnUnfinishedCommit) {
  auto reader = Open();
  RK_ASSERT_OK(PutNumbered(*reader, 1));
  const Files before = Save();
  RK_ASSERT_OK(PutNumbered(*reader, 2));
  const Files after = Save();
  reader.reset();
  Restore(before);
  reader = Open();
  EXPECT_EQ(NumbersIn(*reader), "1");
  auto append = [&](const char* name, absl::string_view bytes) {
    int fd = open((path_ + "/" + name).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(fd);
  };
  const absl::string_view record = absl::string_view(after.at(kA)).substr(before.at(kA).size());
  append(kA, record.substr(0, 30));
  EXPECT_EQ(NumbersIn(*reader), "1");
  {
    // While its writer is at work, it does not count before copy b has it.
    auto lock = RealBlockIo()->Open(path_ + "/lock", true);
    RK_ASSERT_OK((*lock)->Lock(LockMode::kExclusive, true));
    append(kA, record.substr(30));
    EXPECT_EQ(NumbersIn(*reader), "1");
    append(kB, record.substr(0, 60));
    EXPECT_EQ(NumbersIn(*reader), "1");
  }
  EXPECT_EQ(NumbersIn(*reader), "1 2");
  RK_ASSERT_OK(PutNumbered(*reader, 3));
  EXPECT_EQ(NumbersIn(*reader), "1 2 3");
  reader.reset();
  ExpectSound("1 2 3");
}

std::string PrivateMounts() {
  if (unshare(CLONE_NEWNS) != 0) return absl::StrCat("unshare: ", strerror(errno));
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "private mounts";
  return "";
}

// Takes all that its disk has left.
void FillUp(const std::string& file) {
  const std::string block(4096, 'x');
  const UniqueFd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  while (write(fd.get(), block.data(), block.size()) > 0) {
  }
}

// `*put` is the next number before, and the one behind that which was refused afterwards.
absl::Status PutUntilRefused(Catalog& catalog, int* put) {
  absl::Status status;
  for (; status.ok() && *put < 2000; ++*put) status = PutNumbered(catalog, *put);
  return status;
}

TEST_F(CatalogTest, AFullDiskStillLetsImagesBeRemoved) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  pid_t pid = StartChild([this]() -> std::string {
    if (std::string error = PrivateMounts(); !error.empty()) return error;
    if (mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=3m") != 0) return "mount";
    if (auto status = Catalog::Create(path_, RealBlockIo()); !status.ok()) return status.ToString();
    auto catalog = Catalog::Open(path_, RealBlockIo());
    if (!catalog.ok()) return catalog.status().ToString();
    for (int i = 0; i < 300; ++i) {
      if (auto status = PutNumbered(**catalog, i); !status.ok()) return status.ToString();
    }
    FillUp(path_ + "/filler");
    int put = 300;
    absl::Status status = PutUntilRefused(**catalog, &put);
    if (!absl::IsResourceExhausted(status)) return absl::StrCat("putting: ", status.ToString());
    for (const char* part : {"full", "gc", path_.c_str()}) {
      if (!absl::StrContains(status.message(), part)) return status.ToString();
    }
    const Files before = Save();
    if (!absl::IsResourceExhausted(PutNumbered(**catalog, 5000))) return "it was possible the second time";
    if (Save() != before) return "a refused change left something";
    for (int i = 0; i < put - 1; ++i) {
      if (status = RemoveNumbered(**catalog, i); !status.ok())
        return absl::StrCat(i, ": ", status.ToString());
    }
    DeadRecord dead;
    dead.dead.resize(100000);
    status = (*catalog)->Update([&](Catalog::Txn& txn) { return txn.PutDead(1, dead); });
    if (!status.ok()) return status.ToString();
    catalog->reset();
    catalog = Catalog::Open(path_, RealBlockIo());
    if (!catalog.ok()) return catalog.status().ToString();
    if (std::string numbers = NumbersIn(**catalog); !numbers.empty()) return numbers;
    if (!(*catalog)->Problems().empty()) return (*catalog)->Problems().front();
    if (unlink((path_ + "/filler").c_str()) != 0) return "unlink";
    return PutNumbered(**catalog, 1).ok() ? "" : "no image can be added after space was freed";
  });
  EXPECT_EQ(WaitForChild(pid), 0);
}

// As on NFS before 4.2, and on CephFS.
TEST_F(CatalogTest, AFullDiskOnWhichNothingCanBeReservedLetsImagesBeRemovedToo) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  pid_t pid = StartChild([this]() -> std::string {
    if (std::string error = PrivateMounts(); !error.empty()) return error;
    if (mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=3m") != 0) return "mount";
    HookedDisk disk([](const HookedDisk::Operation&) { return absl::OkStatus(); });
    disk.RefuseAllocation();
    if (auto status = Catalog::Create(path_, &disk); !status.ok()) return status.ToString();
    auto catalog = Catalog::Open(path_, &disk);
    if (!catalog.ok()) return catalog.status().ToString();
    for (int i = 0; i < 300; ++i) {
      if (auto status = PutNumbered(**catalog, i); !status.ok()) return status.ToString();
    }
    const std::string filler = path_ + "/filler";
    FillUp(filler);
    int put = 300;
    absl::Status status = PutUntilRefused(**catalog, &put);
    if (!absl::IsResourceExhausted(status)) return absl::StrCat("putting: ", status.ToString());
    for (int i = 0; i < put - 1; ++i) {
      if (status = RemoveNumbered(**catalog, i); !status.ok())
        return absl::StrCat(i, ": ", status.ToString());
    }
    if (unlink(filler.c_str()) != 0) return "unlink";
    if (status = PutNumbered(**catalog, 1); !status.ok()) return status.ToString();
    // It is ready for the next time.
    return FileSize(path_ + "/ballast") == 256 << 10 ? "" : "the room is not kept again";
  });
  EXPECT_EQ(WaitForChild(pid), 0);
}

// As on ZFS, where fallocate() only looks how much is free, and what is removed comes back some seconds
// later.
TEST_F(CatalogTest, WhereReservedSpaceIsNotKeptThereIsABallastWhoseRoomIsWaitedFor) {
  int full = 0, waited_for = 0;
  bool undoes = false;
  HookedDisk disk([&](const HookedDisk::Operation& operation) -> absl::Status {
    if (full == 0 || operation.call != HookedDisk::Call::kSync || !absl::EndsWith(operation.path, ".a"))
      return absl::OkStatus();
    if (std::exchange(undoes, false)) return absl::OkStatus();
    if (!PathExists(path_ + "/ballast") && ++waited_for == full) return absl::OkStatus();
    undoes = true;
    return absl::ResourceExhaustedError("the file system is full");
  });
  disk.OnlyPretendToAllocate();
  disk.GiveBackLate();
  RK_ASSERT_OK(Catalog::Create(path_, &disk));
  auto catalog = Catalog::Open(path_, &disk);
  RK_ASSERT_OK(catalog);
  RK_ASSERT_OK(PutNumbered(**catalog, 1));
  RK_ASSERT_OK(PutNumbered(**catalog, 2));
  EXPECT_EQ(FileSize(path_ + "/ballast"), 256u << 10);
  full = 12;  // later than elsewhere it would be waited for
  EXPECT_TRUE(absl::IsResourceExhausted(PutNumbered(**catalog, 3)));
  EXPECT_EQ(waited_for, 0) << "what takes room leaves the ballast";
  RK_ASSERT_OK(RemoveNumbered(**catalog, 1));
  EXPECT_EQ(waited_for, 12);
  full = 0;
  EXPECT_EQ(NumbersIn(**catalog), "2");
  RK_ASSERT_OK(PutNumbered(**catalog, 3));
  EXPECT_EQ(FileSize(path_ + "/ballast"), 256u << 10) << "ready for the next time";
}

// As on NFS: what was removed is there at once, or never. All others wait meanwhile.
TEST_F(CatalogTest, RoomThatDoesNotComeBackIsNotWaitedForAsLong) {
  bool full = false, undoes = false;
  int tries = 0;
  HookedDisk disk([&](const HookedDisk::Operation& operation) -> absl::Status {
    if (!full || operation.call != HookedDisk::Call::kSync || !absl::EndsWith(operation.path, ".a"))
      return absl::OkStatus();
    if (std::exchange(undoes, false)) return absl::OkStatus();
    undoes = true;
    ++tries;
    return absl::ResourceExhaustedError("the file system is full");
  });
  disk.OnlyPretendToAllocate();
  RK_ASSERT_OK(Catalog::Create(path_, &disk));
  auto catalog = Catalog::Open(path_, &disk);
  RK_ASSERT_OK(catalog);
  RK_ASSERT_OK(PutNumbered(**catalog, 1));
  full = true;
  EXPECT_TRUE(absl::IsResourceExhausted(RemoveNumbered(**catalog, 1)));
  EXPECT_GT(tries, 1) << "once more without the ballast";
  EXPECT_LT(tries, 15);
  full = false;
  EXPECT_EQ(NumbersIn(**catalog), "1");
  RK_ASSERT_OK(RemoveNumbered(**catalog, 1));
}

TEST_F(CatalogTest, ReadsFromAReadOnlyFileSystem) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  {
    auto catalog = Open();
    for (int i = 1; i <= 3; ++i) RK_ASSERT_OK(PutNumbered(*catalog, i));
  }
  Files files = Save();
  Files damaged = files, unfinished = files;
  damaged[kB][400] ^= 1;
  unfinished[kB].resize(unfinished[kB].size() - 5);
  Files unlocked = damaged;
  unlocked.erase("lock");
  for (const Files& content : {files, damaged, unfinished, unlocked}) {
    Restore(content);
    pid_t pid = StartChild([this]() -> std::string {
      if (std::string error = PrivateMounts(); !error.empty()) return error;
      if (mount(path_.c_str(), path_.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
          mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
        return "remount";
      }
      auto catalog = Catalog::Open(path_, RealBlockIo());
      if (!catalog.ok()) return catalog.status().ToString();
      if (std::string numbers = NumbersIn(**catalog); numbers != "1 2 3") return numbers;
      if (PutNumbered(**catalog, 4).ok()) return "it was written to";
      return NumbersIn(**catalog) == "1 2 3" ? "" : "a refused change is visible";
    });
    EXPECT_EQ(WaitForChild(pid), 0);
    EXPECT_TRUE(Save() == content);
  }
}

TEST_F(CatalogTest, ManyImagesComeBack) {
  auto catalog = Open();
  std::mt19937_64 random(7);
  std::map<uint64_t, std::string> model;
  for (int round = 0; round < 60; ++round) {
    RK_ASSERT_OK(catalog->Update([&](Catalog::Txn& txn) -> absl::Status {
      for (int i = 0; i < 100; ++i) {
        ImageRecord record = NumberedRecord(random() >> 20);
        RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
        RK_RETURN_IF_ERROR(txn.PutImage(record));
        model[record.id] = record.Encode();
        if (i % 5 == 0) continue;
        auto victim = model.lower_bound(random() % record.id);
        if (victim == model.end()) continue;
        RK_RETURN_IF_ERROR(txn.DeleteImage(*ImageRecord::Decode(victim->second)));
        model.erase(victim);
      }
      return absl::OkStatus();
    }));
  }
  for (int round = 0; round < 2; ++round) {
    auto images = catalog->Read()->Images();
    ASSERT_EQ(images->size(), model.size());
    auto expected = model.begin();
    for (const ImageRecord& record : *images) {
      EXPECT_EQ(record.Encode(), expected->second);
      EXPECT_EQ((*catalog->Read()->FindReference(record.info.reference))->id, record.id);
      ++expected;
    }
    catalog.reset();
    catalog = Open();
  }
  EXPECT_GT(model.size(), 1000u);
  EXPECT_EQ(Save().count(kA), 0u);  // the log was written anew meanwhile
}

}  // namespace
}  // namespace rekindle::store
