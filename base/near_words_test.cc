#include "base/near_words.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rekindle {
namespace {

TEST(NearWordsTest, LettersPutInLeftOutChangedAndSwappedAreCounted) {
  EXPECT_EQ(WordDistance("every", "every", 2), 0u);
  EXPECT_EQ(WordDistance("evry", "every", 2), 1u);
  EXPECT_EQ(WordDistance("everyy", "every", 2), 1u);
  EXPECT_EQ(WordDistance("evary", "every", 2), 1u);
  EXPECT_EQ(WordDistance("eveyr", "every", 2), 1u);
  EXPECT_EQ(WordDistance("restarst", "restore", 9), 3u);
  EXPECT_EQ(WordDistance("", "ab", 2), 2u);
  EXPECT_EQ(WordDistance("abc", "xyz", 2), 3u) << "no more than one above what is asked for";
  EXPECT_EQ(WordDistance("a", std::string(1 << 20, 'a'), 2), 3u) << "without looking at all of it";
}

TEST(NearWordsTest, ASlipOfTheFingersIsFound) {
  const std::vector<KnownWord> known = {{"run"}, {"restore"}, {"restarts"}, {"ls"},
                                        {"ps"},  {"top"},     {"every"}};
  EXPECT_EQ(NearWord("evry", known), "every");
  EXPECT_EQ(NearWord("rnu", known), "run");
  EXPECT_EQ(NearWord("resotre", known), "restore");
  EXPECT_EQ(NearWord("restrats", known), "restarts");
  EXPECT_EQ(NearWord("sl", known), "ls");
  EXPECT_EQ(NearWord("restor", known), "restore");
  EXPECT_EQ(NearWord("resta", known), "restarts") << "the only one that begins so";
}

TEST(NearWordsTest, WhatIsNotNearOrNotTheOnlyOneIsNotGuessed) {
  const std::vector<KnownWord> known = {{"ls"}, {"ps"}, {"restore"}, {"restarts"}, {"run"}, {"detach"}};
  for (const char* typed : {"", "s", "xs", "rest", "r", "frobnicate", "attach-it"})
    EXPECT_EQ(NearWord(typed, known), "") << typed;
  EXPECT_EQ(NearWord(std::string(1 << 20, 'r'), known), "");
}

TEST(NearWordsTest, NoDangerousWordIsNamedUnlessItWasAllButWritten) {
  const std::vector<KnownWord> known = {{"rm", true}, {"gc", true}, {"prune", true},
                                        {"ps"},       {"run"},      {"probe"}};
  EXPECT_EQ(NearWord("prnue", known), "prune");
  EXPECT_EQ(NearWord("prunee", known), "prune");
  for (const char* typed : {"pruune1", "pru", "g", "gp", "r", "rn", "mr", "cg", "rmm", "purnee"})
    EXPECT_EQ(NearWord(typed, known), "") << typed;
  EXPECT_EQ(NearWord("prube", known), "probe") << "as near as prune";
}

}  // namespace
}  // namespace rekindle
