#include "ckpt/image_staging.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<char>(i % 8 == 0 ? random() : bytes[i - 1] * 5 + 1);
  return bytes;
}

std::string Joined(const Pieces& pieces) {
  std::string bytes;
  for (const auto& piece : pieces) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return bytes;
}

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    read.Reset(ends[0]);
    write.Reset(ends[1]);
  }
  UniqueFd read, write;
};

// Writes in the uneven steps of a process whose memory is scattered; true when the reader took all of it.
bool Feed(UniqueFd pipe, const std::string& bytes) {
  for (size_t at = 0, step = 1; at < bytes.size(); step = step * 3 % 300007) {
    size_t length = std::min(step, bytes.size() - at);
    if (!WriteFully(pipe.get(), bytes.data() + at, length, "pipe").ok()) return false;
    at += length;
  }
  return true;
}

class ImageStagingTest : public testing::Test {
 protected:
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }

  std::unique_ptr<StagingArena> Arena(uint64_t budget) {
    return StagingArena::Create(budget, budget, folder_.path()).value();
  }

  // Drains `bytes` under `name` as the capture server would, and returns what Drain returned.
  static absl::Status Send(ImageStaging* staging, const std::string& name, const std::string& bytes) {
    Pipe pipe;
    std::thread writer([&] { Feed(std::move(pipe.write), bytes); });
    absl::Status status = staging->Drain(name, std::move(pipe.read));
    writer.join();
    return status;
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_staging_test.").value();
};

// As many deleted files as its owner likes.
TEST_F(ImageStagingTest, FilesHaveABoundTogether) {
  auto arena = Arena(StagingArena::kBlockBytes);
  ImageStaging staging(arena.get(), 1, 100'000);
  for (const char* name : {"ghost-file-1.img", "files.img", "ghost-file-2.img", "pages-1.img"})
    staging.Announced(name);
  EXPECT_TRUE(Send(&staging, "ghost-file-1.img", std::string(60'000, 'x')).ok());
  EXPECT_TRUE(Send(&staging, "pages-1.img", std::string(200 * 4096, 'x')).ok());
  EXPECT_TRUE(Send(&staging, "files.img", std::string(40'000, 'x')).ok());
  const absl::Status more = Send(&staging, "ghost-file-2.img", "x");
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  EXPECT_THAT(std::string(more.message()), HasSubstr("deleted files"));
  EXPECT_EQ(staging.WaitUntilPagesAreOurs(), more);
}

class ImageStagingThreadsTest : public ImageStagingTest, public testing::WithParamInterface<size_t> {};

TEST_P(ImageStagingThreadsTest, PagesComeOutExactAndInOrder) {
  // Four blocks in memory, then the spill file: the pieces are not neighbours.
  auto arena = Arena(4 * StagingArena::kBlockBytes);
  ImageStaging staging(arena.get(), GetParam());
  std::string bytes = RandomBytes(5 * StagingArena::kBlockBytes + 3 * 4096, 1);
  staging.Announced("pages-1.img");
  absl::Status status = Send(&staging, "pages-1.img", bytes);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(staging.bytes_staged(), bytes.size());
  StagedImage image = staging.Take();
  EXPECT_THAT(image.files, IsEmpty());
  ASSERT_EQ(image.pages.size(), 1u);
  const Pieces& pieces = image.pages["pages-1.img"];
  EXPECT_GT(pieces.size(), 1u);
  for (size_t i = 0; i + 1 < pieces.size(); ++i) EXPECT_EQ(pieces[i].size() % 4096, 0u) << i;
  EXPECT_TRUE(Joined(pieces) == bytes);
  EXPECT_GT(arena->spilled_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Threads, ImageStagingThreadsTest, testing::Values(1, 2, 4));

TEST_F(ImageStagingTest, FilesThatComeAtOnceDoNotMix) {
  auto arena = Arena(16 * StagingArena::kBlockBytes);
  ImageStaging staging(arena.get(), 2);
  std::map<std::string, std::string> sent;
  for (int i = 1; i <= 3; ++i) {
    sent["pages-" + std::to_string(i) + ".img"] = RandomBytes(StagingArena::kBlockBytes + i * 4096, i);
    sent["core-" + std::to_string(i) + ".img"] = RandomBytes(40000 * i + 1, 10 + i);
  }
  sent["empty.img"] = "";
  std::vector<std::thread> threads;
  for (const auto& [name, bytes] : sent) {
    staging.Announced(name);
    threads.emplace_back([&staging, &name = name, &bytes = bytes] {
      absl::Status status = Send(&staging, name, bytes);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  StagedImage image = staging.Take();
  EXPECT_EQ(image.files.size() + image.pages.size(), sent.size());
  uint64_t total = 0;
  for (const auto& [name, bytes] : sent) {
    total += bytes.size();
    std::string got = image.pages.contains(name) ? Joined(image.pages[name]) : image.files[name];
    EXPECT_TRUE(got == bytes) << name;
  }
  EXPECT_EQ(image.bytes(), total);
  EXPECT_EQ(staging.bytes_staged(), total);
}

TEST_F(ImageStagingTest, PagesAreOursOnlyWhenTheLastFileIsKnownAndAllPagesAreRead) {
  auto arena = Arena(StagingArena::kBlockBytes);
  ImageStaging staging(arena.get(), 2);
  std::atomic<bool> returned{false};
  absl::Status waited;
  std::thread waiter([&] {
    waited = staging.WaitUntilPagesAreOurs();
    returned = true;
  });
  // No page is open now, but more may come.
  EXPECT_FALSE(returned);
  staging.Announced("pages-1.img");
  Pipe pages;
  std::thread drain([&] { EXPECT_TRUE(staging.Drain("pages-1.img", std::move(pages.read)).ok()); });
  EXPECT_TRUE(WriteFully(pages.write.get(), std::string(4096, 'p').data(), 4096, "pipe").ok());
  EXPECT_FALSE(returned);
  staging.Announced("inventory.img");
  EXPECT_FALSE(returned);
  pages.write.Reset();
  drain.join();
  // The inventory itself, a small file, need not have come: it refers to nothing of the job.
  waiter.join();
  EXPECT_TRUE(waited.ok()) << waited;
}

TEST_F(ImageStagingTest, AbandonEndsTheWaitWithItsReasonAndTheDrainOfPages) {
  auto arena = Arena(StagingArena::kBlockBytes);
  ImageStaging staging(arena.get(), 2);
  staging.Announced("pages-1.img");
  Pipe pages;
  absl::Status drained;
  std::thread drain([&] { drained = staging.Drain("pages-1.img", std::move(pages.read)); });
  absl::Status waited;
  std::thread waiter([&] { waited = staging.WaitUntilPagesAreOurs(); });
  staging.Abandon(absl::CancelledError("the user lost patience"));
  waiter.join();
  EXPECT_EQ(waited, absl::CancelledError("the user lost patience"));
  // A sender with no end in sight gets a broken pipe.
  std::string page(4096, 'x');
  while (WriteFully(pages.write.get(), page.data(), page.size(), "pipe").ok()) {
  }
  drain.join();
  EXPECT_EQ(drained.code(), absl::StatusCode::kCancelled) << drained;
  staging.Abandon(absl::AbortedError("later"));
  EXPECT_EQ(staging.WaitUntilPagesAreOurs(), absl::CancelledError("the user lost patience"));
}

TEST_F(ImageStagingTest, StagingThatFindsNoRoomFailsTheFileAndTheWait) {
  // One block of memory, and nowhere to spill.
  auto arena =
      StagingArena::Create(StagingArena::kBlockBytes, StagingArena::kBlockBytes, folder_.path() + "/absent")
          .value();
  ImageStaging staging(arena.get(), 2);
  staging.Announced("pages-1.img");
  staging.Announced("inventory.img");
  Pipe pipe;
  bool sent_all = true;
  std::thread writer(
      [&] { sent_all = Feed(std::move(pipe.write), RandomBytes(16 * StagingArena::kBlockBytes, 1)); });
  absl::Status status = staging.Drain("pages-1.img", std::move(pipe.read));
  writer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_FALSE(sent_all);  // CRIU must learn that it can't go on
  EXPECT_EQ(staging.WaitUntilPagesAreOurs(), status);
  EXPECT_THAT(staging.Take().pages, IsEmpty());
}

TEST_F(ImageStagingTest, PipesThatCantBeReadFailWithTheFileName) {
  auto arena = Arena(StagingArena::kBlockBytes);
  for (const std::string name : {"core-1.img", "pages-1.img"}) {
    ImageStaging staging(arena.get(), 2);
    staging.Announced(name);
    absl::Status status = staging.Drain(name, OpenFile(folder_.path(), O_RDONLY | O_DIRECTORY).value());
    EXPECT_FALSE(status.ok()) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_EQ(staging.WaitUntilPagesAreOurs(), status);
  }
}

TEST_F(ImageStagingTest, FilesWithoutContentAreKept) {
  auto arena = Arena(StagingArena::kBlockBytes);
  ImageStaging staging(arena.get(), 2);
  for (const char* name : {"pages-1.img", "inventory.img"}) {
    staging.Announced(name);
    EXPECT_TRUE(Send(&staging, name, "").ok());
  }
  EXPECT_TRUE(staging.WaitUntilPagesAreOurs().ok());
  StagedImage image = staging.Take();
  EXPECT_THAT(image.files, ElementsAre(Pair("inventory.img", "")));
  EXPECT_THAT(image.pages, ElementsAre(Pair("pages-1.img", IsEmpty())));
}

TEST_F(ImageStagingTest, FilesAreLookedAtWhenAllOfThemAreThere) {
  auto arena = Arena(StagingArena::kBlockBytes);
  ImageStaging staging(arena.get(), 1);
  Pipe late;
  std::thread slow;
  staging.Announced("files.img");
  slow = std::thread([&] { EXPECT_TRUE(staging.Drain("files.img", std::move(late.read)).ok()); });
  staging.Announced("inventory.img");
  EXPECT_TRUE(Send(&staging, "inventory.img", "an inventory").ok());
  std::map<std::string, std::string> seen;
  absl::Status looked;
  std::thread looker([&] { looked = staging.LookAtFiles([&](const auto& files) { seen = files; }); });
  EXPECT_TRUE(WriteFully(late.write.get(), "files", 5, "pipe").ok());
  late.write.Reset();
  slow.join();
  looker.join();
  EXPECT_TRUE(looked.ok()) << looked;
  EXPECT_THAT(seen, ElementsAre(Pair("files.img", "files"), Pair("inventory.img", "an inventory")));

  staging.Abandon(absl::CancelledError("no more"));
  seen.clear();
  EXPECT_EQ(staging.LookAtFiles([&](const auto& files) { seen = files; }).code(),
            absl::StatusCode::kCancelled);
  EXPECT_THAT(seen, IsEmpty());
}

}  // namespace
}  // namespace rekindle::ckpt
