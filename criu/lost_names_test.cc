#include "criu/lost_names.h"

#include <fcntl.h>

#include "absl/strings/match.h"
#include "criu/image_files.h"
#include "criu/test_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A ghost, a file with an extra name that was opened twice, one that has its name, and another extra name.
class LostNamesTest : public testing::Test {
 protected:
  LostNamesTest() {
    files_["files.img"] = MakeFiles({{1, "/tmp/ghost", 5, O_RDWR, 0},
                                     {7, "/tmp/link_remap.7", 0, O_RDONLY, 0},
                                     {2, "/tmp/lost", 9, O_RDONLY, 0},
                                     {3, "/tmp/lost", 9, O_RDWR, 4},
                                     {4, "/tmp/there", 3, O_RDONLY, 0},
                                     {8, "/usr/link_remap.8", 0, O_RDONLY, 0},
                                     {5, "/usr/lib", 100, O_RDONLY, 0}});
    files_["remap-fpath.img"] = MakeRemaps({{1, 0x1e, 1}, {2, 7, 0}, {3, 7, 0}, {5, 8, 0}});
  }

  std::vector<std::string> Paths() {
    std::vector<std::string> paths;
    auto files = ParseRegularFiles(files_["files.img"], files_["remap-fpath.img"]);
    EXPECT_TRUE(files.ok()) << files.status();
    for (const RegularFile& file : *files) paths.push_back(file.path + (file.ghost ? " (ghost)" : ""));
    return paths;
  }

  std::map<std::string, std::string> files_;
};

TEST_F(LostNamesTest, ExtraLinksAreFoundWithTheFilesThatComeThroughThem) {
  auto links = FindExtraLinks(files_["files.img"], files_["remap-fpath.img"]);
  ASSERT_TRUE(links.ok()) << links.status();
  ASSERT_EQ(links->size(), 2u);
  EXPECT_EQ((*links)[0].path, "/tmp/link_remap.7");
  EXPECT_EQ((*links)[0].lost_name, "/tmp/lost");
  EXPECT_TRUE((*links)[0].written);
  EXPECT_THAT((*links)[0].file_ids, ElementsAre(2, 3));
  EXPECT_EQ((*links)[1].path, "/usr/link_remap.8");
  EXPECT_FALSE((*links)[1].written);

  EXPECT_THAT(*FindExtraLinks(files_["files.img"], ""), IsEmpty());
  EXPECT_THAT(*FindExtraLinks(files_["files.img"], MakeGhosts({1})), IsEmpty());
}

TEST_F(LostNamesTest, AnotherNameTakesItsPlaceAndTheExtraOneIsForgotten) {
  std::map<std::string, LinkReplacement> names;
  names["/tmp/link_remap.7"].name = "/tmp/other";
  ASSERT_TRUE(ReplaceExtraLinks(std::map(names), &files_).ok());
  EXPECT_THAT(Paths(), ElementsAre("/tmp/ghost (ghost)", "/tmp/other", "/tmp/other", "/tmp/there",
                                   "/usr/link_remap.8", "/usr/lib (ghost)"));
  auto files = ParseRegularFiles(files_["files.img"]);
  EXPECT_EQ((*files)[2].position, 4u);
  EXPECT_TRUE((*files)[2].written);
  EXPECT_EQ(FindExtraLinks(files_["files.img"], files_["remap-fpath.img"])->size(), 1u);
}

TEST_F(LostNamesTest, ContentTakesItsPlaceBesideOtherGhosts) {
  std::map<std::string, LinkReplacement> names;
  names["/tmp/link_remap.7"].name = "/tmp/other";
  LinkReplacement& library = names["/usr/link_remap.8"];
  library.content = "text";
  library.uid = 3;
  library.gid = 4;
  library.mode = 0100640;
  ASSERT_TRUE(ReplaceExtraLinks(std::map(names), &files_).ok());
  EXPECT_THAT(Paths(), ElementsAre("/tmp/ghost (ghost)", "/tmp/other", "/tmp/other", "/tmp/there",
                                   "/usr/lib (ghost)"));
  EXPECT_EQ(files_["remap-fpath.img"], MakeRemaps({{1, 0x1e, 1}, {5, 0x1f, 1}}));
  pb::GhostFile head;
  head.set_uid(3);
  head.set_gid(4);
  head.set_mode(0100640);
  EXPECT_EQ(files_["ghost-file-1f.img"], MakeImage(0x52583605, {head.SerializeAsString()}) + "text");
}

TEST_F(LostNamesTest, NoListStaysWhereNoNameIsLost) {
  files_["remap-fpath.img"] = MakeRemaps({{2, 7, 0}, {3, 7, 0}});
  std::map<std::string, LinkReplacement> names;
  names["/tmp/link_remap.7"].name = "/tmp/other";
  ASSERT_TRUE(ReplaceExtraLinks(std::map(names), &files_).ok());
  EXPECT_FALSE(files_.contains("remap-fpath.img"));
}

TEST_F(LostNamesTest, FilesBecomeGhosts) {
  LinkReplacement there;
  there.uid = 3;
  there.gid = 4;
  there.mode = 0100640;
  pb::GhostFile head;
  head.set_uid(3);
  head.set_gid(4);
  head.set_mode(0100640);
  const std::string before = files_["remap-fpath.img"];
  auto ghosts = MakeGhosts({{"/tmp/there", there}}, files_["files.img"], &files_["remap-fpath.img"]);
  ASSERT_TRUE(ghosts.ok()) << ghosts.status();
  ASSERT_EQ(ghosts->size(), 1u);
  EXPECT_EQ((*ghosts)[0].image_file, "ghost-file-1f.img");
  EXPECT_EQ((*ghosts)[0].image_head, MakeImage(0x52583605, {head.SerializeAsString()}));
  EXPECT_THAT(Paths(), Contains("/tmp/there (ghost)"));
  EXPECT_TRUE(absl::StartsWith(files_["remap-fpath.img"], before));

  std::string none;
  ghosts = MakeGhosts({{"/tmp/lost", there}}, files_["files.img"], &none);
  ASSERT_TRUE(ghosts.ok()) << ghosts.status();
  EXPECT_EQ(none, MakeRemaps({{2, 1, 1}, {3, 1, 1}})) << "one content for both ways in which it was opened";
  EXPECT_TRUE(absl::IsNotFound(MakeGhosts({{"/tmp/no", there}}, files_["files.img"], &none).status()));
}

TEST_F(LostNamesTest, WhatIsNotThereOrDamagedChangesNothing) {
  const auto before = files_;
  std::map<std::string, LinkReplacement> names;
  names["/tmp/link_remap.9"].name = "/tmp/other";
  EXPECT_TRUE(absl::IsNotFound(ReplaceExtraLinks(std::map(names), &files_)));
  EXPECT_EQ(files_, before);
  EXPECT_TRUE(ReplaceExtraLinks({}, &files_).ok());
  EXPECT_EQ(files_, before);

  auto links = FindExtraLinks(files_["files.img"], MakeRemaps({{2, 70, 0}}));
  EXPECT_TRUE(absl::IsDataLoss(links.status())) << links.status();
  EXPECT_TRUE(absl::IsDataLoss(FindExtraLinks(files_["files.img"], "xx").status()));
}

}  // namespace
}  // namespace rekindle::criu
