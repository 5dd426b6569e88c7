// Whoever may write a store can make packs whose checksums fit: they are refused before they do harm.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "dedup_store/format.h"
#include "dedup_store/hashing.h"
#include "dedup_store/scrub.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class ForgedPackTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    image_.objects["m"][0] = MakePages(600, 1) + MakePages(200, 2, Content::kText);
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
    const std::vector<std::string> names = ListDirectory(options_.path + "/packs").value();
    ASSERT_EQ(names.size(), 1u);
    path_ = options_.path + "/packs/" + names.front();
    good_ = ReadFile(path_).value();
  }

  using Change = std::function<void(PackFooter& footer, std::vector<FrameEntry>& frames)>;
  void Forge(const Change& change) {
    store_.reset();
    std::string bytes = good_;
    PackFooter footer;
    memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
    const SectionEntry table = footer.sections[kFrames];
    std::vector<FrameEntry> frames(footer.frames);
    memcpy(frames.data(), bytes.data() + table.offset, table.bytes);
    change(footer, frames);
    memcpy(bytes.data() + table.offset, frames.data(), table.bytes);
    footer.sections[kFrames].checksum = Checksum(frames.data(), table.bytes);
    footer.checksum = Checksum(&footer, offsetof(PackFooter, checksum));
    memcpy(bytes.data() + bytes.size() - sizeof footer, &footer, sizeof footer);
    RK_ASSERT_OK(WriteFileAtomically(path_, bytes));
    Reopen();
  }
  static size_t FirstCompressed(const std::vector<FrameEntry>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      if (!IsRaw(frames[i].codec())) return i;
    }
    ADD_FAILURE() << "no compressed frame";
    return 0;
  }

  // All that reads frames.
  void ExpectRefused() {
    FsckOptions options;
    options.read_data = true;
    auto report = store_->Fsck(options);
    RK_ASSERT_OK(report);
    EXPECT_EQ(report->lost_images, std::vector<std::string>{"job:1"});
    EXPECT_FALSE(store_->OpenImage("job:1").ok());
    auto scrub = NewScrub(*store_);
    RK_ASSERT_OK(scrub);
    for (bool ended = false; !ended;) {
      auto step = (*scrub)->Next();
      RK_ASSERT_OK(step);
      ended = step->pass_ended;
    }
    EXPECT_EQ((*scrub)->state().damage.size(), 1u);
    RK_ASSERT_OK(image_.Commit(*store_, "job:2", "", true));
    image_.ExpectIn(*store_, "job:2");
    RK_ASSERT_OK(store_->Remove("job:2"));
  }

  TestImage image_;
  std::string path_, good_;
};

TEST_F(ForgedPackTest, AFrameThatIsLargerThanAnyCanBe) {
  for (const uint32_t more : {0u, 1u << 20}) {
    SCOPED_TRACE(more);
    Forge([&](PackFooter& footer, std::vector<FrameEntry>& frames) {
      FrameEntry& frame = frames[FirstCompressed(frames)];
      frame.stored_bytes = more != 0 ? static_cast<uint32_t>(footer.data_end - frame.offset()) : 0;
    });
    ExpectRefused();
  }
}

TEST_F(ForgedPackTest, FramesThatAreNotOneBehindTheOther) {
  Forge([](PackFooter&, std::vector<FrameEntry>& frames) {
    std::swap(frames[1].offset_and_codec, frames[2].offset_and_codec);
  });
  ExpectRefused();
  Forge([](PackFooter&, std::vector<FrameEntry>& frames) {
    frames[0].offset_and_codec -= kPageSize;  // into the header
  });
  ExpectRefused();
}

TEST_F(ForgedPackTest, SectionsAmongTheFrames) {
  Forge([](PackFooter& footer, std::vector<FrameEntry>&) { footer.sections[kManifest].offset = 8192; });
  ExpectRefused();
}

}  // namespace
}  // namespace rekindle::store
