#include "restore/bound_paths.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace rekindle::restore {
namespace {

BoundPaths Bound(const std::vector<std::pair<std::string, std::string>>& binds) { return BoundPaths(binds); }

TEST(BoundPathsTest, WhatLiesThereIsSeenElsewhere) {
  const BoundPaths bound = Bound({{"/data/second/", "/data/first"}, {"/etc/other.conf", "/etc/own.conf"}});
  EXPECT_EQ(bound.OnMachine("/data/first"), "/data/second");
  EXPECT_EQ(bound.OnMachine("/data/first/a/b"), "/data/second/a/b");
  EXPECT_EQ(bound.OnMachine("/etc/own.conf"), "/etc/other.conf");
  for (const char* same :
       {"/data/firsts", "/data", "/data/second/x", "/etc/own.conf2", "/", "", "relative"}) {
    EXPECT_EQ(bound.OnMachine(same), same);
    EXPECT_FALSE(bound.Cover(same)) << same;
  }
  EXPECT_EQ(BoundPaths().OnMachine("/data/first"), "/data/first");
  EXPECT_EQ(Bound({{"/new", "/"}}).OnMachine("/a"), "/new/a");
  EXPECT_EQ(Bound({{"/", "/old"}}).OnMachine("/old/a"), "/a");
  EXPECT_EQ(Bound({{"/", "/old"}}).OnMachine("/old"), "/");
}

TEST(BoundPathsTest, ALaterOneLiesOverAndIsSeenThroughThoseBefore) {
  EXPECT_EQ(Bound({{"/a", "/x"}, {"/b", "/x/y"}}).OnMachine("/x/y/f"), "/b/f");
  EXPECT_EQ(Bound({{"/a", "/x"}, {"/b", "/x/y"}}).OnMachine("/x/f"), "/a/f");
  EXPECT_EQ(Bound({{"/a", "/x"}, {"/x/sub", "/y"}}).OnMachine("/y/f"), "/a/sub/f");
  EXPECT_EQ(Bound({{"/y", "/x"}, {"/a", "/y"}}).OnMachine("/x/f"), "/y/f") << "bound before /y was";
}

TEST(BoundPathsTest, AJobsPathsAreThoseOfItsCopy) {
  v1::JobManifest manifest;
  manifest.set_working_directory("/run1");
  manifest.add_files()->set_path("/run1/out");
  manifest.add_files()->set_path("/lib/x.so");
  manifest.add_written_files()->set_path("/run1/out");
  manifest.add_stdio()->set_path("/run1/log");
  const BoundPaths bound = Bound({{"/run2", "/run1"}});
  const v1::JobManifest seen = bound.OnMachine(manifest);
  EXPECT_EQ(seen.working_directory(), "/run2");
  EXPECT_EQ(seen.files(0).path(), "/run2/out");
  EXPECT_EQ(seen.files(1).path(), "/lib/x.so");
  EXPECT_EQ(seen.written_files(0).path(), "/run2/out");
  EXPECT_EQ(seen.stdio(0).path(), "/run2/log");
  EXPECT_TRUE(bound.CoverSomethingOf(manifest));
  EXPECT_FALSE(Bound({{"/run2", "/data"}}).CoverSomethingOf(manifest));
  EXPECT_NE(Bound({{"/a", "/b"}}).Text(), Bound({{"/a", "/bc"}}).Text());
  EXPECT_NE(Bound({{"/a", "/b"}, {"/c", "/d"}}).Text(), Bound({{"/c", "/d"}, {"/a", "/b"}}).Text());
}

}  // namespace
}  // namespace rekindle::restore
