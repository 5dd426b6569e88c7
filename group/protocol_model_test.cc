// The whole protocol, coordinator and two members, in every order in which messages can arrive and streams
// break and daemons be killed, with what they ask each other afterwards: the set of images is complete or not
// there.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "group/coordinator_state.h"
#include "group/member_state.h"

namespace rekindle::group {
namespace {

constexpr size_t kMembers = 2;
enum class Image { kNone, kPrepared, kPublished };

struct Member {
  std::optional<MemberState> state;  // its daemon lives and has the stream's call in work
  int told = 0;                      // events that it has sent: prepared, frozen, stored
  bool frozen = false;               // its job stands still
  bool ran_since = false;            // after it was frozen
  Image image = Image::kNone;
};

struct World {
  std::optional<CoordinatorState> coordinator{CoordinatorState(kMembers)};
  bool decided = false;  // durable
  std::array<Member, kMembers> members;
  std::array<std::string, kMembers> up, down;  // messages on their way, in order
  std::array<bool, kMembers> connected{true, true};

  World() {
    for (Member& member : members) member.state.emplace();
  }

  std::string Key() const {
    std::string key(1, decided ? 'D' : '-');
    if (coordinator) {
      key += static_cast<char>('0' + static_cast<int>(coordinator->outcome()));
      key += coordinator_history;
    }
    for (size_t i = 0; i < kMembers; ++i) {
      const Member& m = members[i];
      key += '|';
      key += m.state ? std::string{static_cast<char>('a' + static_cast<int>(m.state->MayFreeze())),
                                   static_cast<char>('a' + static_cast<int>(m.state->MayGoOn())),
                                   static_cast<char>('a' + static_cast<int>(m.state->fate()))}
                     : "x";
      key += static_cast<char>('0' + m.told);
      key += m.frozen ? 'f' : 'r';
      key += m.ran_since ? 's' : '-';
      key += static_cast<char>('0' + static_cast<int>(m.image));
      key += connected[i] ? 'c' : 'b';
      key += up[i] + "/" + down[i];
    }
    return key;
  }
  std::string coordinator_history;  // what it was told, as a set: its state follows from that
};

class Explorer {
 public:
  // All worlds that follow from this one.
  void Explore(const World& first) {
    Reach(first);
    while (!reached_.empty() && !::testing::Test::HasFailure()) {
      const World world = std::move(reached_.back());
      reached_.pop_back();
      Follow(world);
    }
  }
  size_t states() const { return seen_.size(); }
  size_t committed() const { return committed_; }

 private:
  using Order = CoordinatorState::Order;

  void Reach(const World& world) {
    if (seen_.insert(world.Key()).second) reached_.push_back(world);
  }
  void Follow(const World& world) {
    Check(world);
    if (::testing::Test::HasFailure()) return;
    CheckRecovery(world);
    for (size_t i = 0; i < kMembers; ++i) {
      MemberSteps(world, i);
      Deliver(world, i);
      Break(world, i);
      KillMember(world, i);
    }
    KillCoordinator(world);
    GiveUp(world);
  }

  static void Tell(World& world, char message) {
    for (size_t i = 0; i < kMembers; ++i) {
      if (world.connected[i]) world.down[i] += message;
    }
  }
  static void Note(World& world, char what, size_t member) {
    const std::string note{what, static_cast<char>('0' + member)};
    if (world.coordinator_history.find(note) == std::string::npos) world.coordinator_history += note;
  }

  // Carries out an order; the write of the decision either works or is known not to have, or the daemon dies
  // at it.
  void Obey(World& world, Order order) {
    switch (order) {
      case Order::kNothing:
        break;
      case Order::kFreeze:
        Tell(world, 'F');
        break;
      case Order::kGo:
        for (const Member& member : world.members) EXPECT_TRUE(member.frozen || !member.state) << world.Key();
        Tell(world, 'G');
        break;
      case Order::kDecide: {
        World failed = world;
        Note(failed, 'n', 0);
        Obey(failed, failed.coordinator->OnDecided(false));
        World died = world;
        died.decided = true;
        DropCoordinator(died);
        Reach(died);
        world.decided = true;
        Note(world, 'd', 0);
        Obey(world, world.coordinator->OnDecided(true));
        return;
      }
      case Order::kCommit:
        EXPECT_TRUE(world.decided);
        Tell(world, 'C');
        break;
      case Order::kAbort:
        EXPECT_FALSE(world.decided);
        Tell(world, 'A');
        break;
    }
    Reach(world);
  }

  void MemberSteps(const World& world, size_t i) {
    const Member& now = world.members[i];
    if (!now.state) return;
    const auto may_say = [&](int told, char message, World& next) {
      next.members[i].told = told;
      if (next.connected[i]) next.up[i] += message;
    };
    World next = world;
    Member& member = next.members[i];
    if (now.told == 0) {
      may_say(1, 'P', next);
      Reach(next);
    } else if (now.told == 1 && now.state->MayFreeze() == MemberState::Verdict::kGoOn) {
      member.frozen = true;
      may_say(2, 'Z', next);
      Reach(next);
    } else if (now.told == 2 && now.frozen && now.state->MayGoOn() == MemberState::Verdict::kGoOn) {
      member.frozen = false;
      member.ran_since = true;
      Reach(next);
    } else if (now.told == 2 && !now.frozen && now.state->MayStore() == MemberState::Verdict::kGoOn) {
      member.image = Image::kPrepared;
      World died = next;  // before anybody knows
      DropMember(died, i);
      Reach(died);
      member.state->OnStored();
      may_say(3, 'S', next);
      Reach(next);
    }
    if (now.told < 3 && now.state->gives_up()) {
      World given_up = world;
      given_up.members[i].frozen = false;
      DropMember(given_up, i);
      Reach(given_up);
    }
    if (now.told < 3 && !now.state->gives_up()) {
      World late = world;
      late.members[i].state->OnLimit();
      Reach(late);
    }
    if (now.told == 3) Settle(world, i);
  }

  void Settle(World world, size_t i) {
    Member& member = world.members[i];
    switch (member.state->fate()) {
      case MemberState::Fate::kWait:
        return;
      case MemberState::Fate::kPublish:
        if (member.image == Image::kPublished) return;
        EXPECT_TRUE(world.decided);
        member.image = Image::kPublished;
        if (world.connected[i]) world.up[i] += 'K';
        break;
      case MemberState::Fate::kRemove:
        EXPECT_FALSE(world.decided);
        member.image = Image::kNone;
        DropMember(world, i);
        break;
      case MemberState::Fate::kInDoubt:
        DropMember(world, i);
        break;
    }
    Reach(world);
  }

  void Deliver(const World& world, size_t i) {
    if (!world.up[i].empty() && world.coordinator) {
      World next = world;
      const char message = next.up[i][0];
      next.up[i].erase(0, 1);
      Note(next, message, i);
      CoordinatorState& c = *next.coordinator;
      Obey(next, message == 'P'   ? c.OnPrepared(i)
                 : message == 'Z' ? c.OnFrozen(i)
                 : message == 'S' ? c.OnStored(i)
                                  : c.OnCommitted(i));
    } else if (world.up[i].empty() && !world.connected[i] && world.coordinator) {
      World next = world;
      Note(next, 'e', i);
      Obey(next, next.coordinator->OnEnded(i));
    }
    if (!world.members[i].state) return;
    World next = world;
    MemberState& state = *next.members[i].state;
    if (!world.down[i].empty()) {
      const char message = next.down[i][0];
      next.down[i].erase(0, 1);
      if (message == 'F') state.OnFreeze();
      if (message == 'G') state.OnGo();
      if (message == 'C') state.OnCommit();
      if (message == 'A') state.OnAbort();
      Reach(next);
    } else if (!world.connected[i]) {
      state.OnBroken();
      Reach(next);
    }
  }

  // What is on its way may still arrive, or be lost.
  void Break(const World& world, size_t i) {
    if (!world.connected[i]) return;
    World next = world;
    next.connected[i] = false;
    Reach(next);
    next.up[i].clear();
    next.down[i].clear();
    Reach(next);
  }

  static void DropMember(World& world, size_t i) {
    world.members[i].state.reset();
    world.members[i].frozen = false;  // CRIU and the dump gate let it go
    world.connected[i] = false;
    world.down[i].clear();
  }
  static void DropCoordinator(World& world) {
    world.coordinator.reset();
    for (size_t i = 0; i < kMembers; ++i) {
      world.connected[i] = false;
      world.up[i].clear();
    }
  }
  void KillMember(const World& world, size_t i) {
    if (!world.members[i].state) return;
    World next = world;
    DropMember(next, i);
    Reach(next);
  }
  void KillCoordinator(const World& world) {
    if (!world.coordinator) return;
    World next = world;
    DropCoordinator(next);
    Reach(next);
  }
  void GiveUp(const World& world) {
    if (!world.coordinator) return;
    World next = world;
    Note(next, 'g', 0);
    Obey(next, next.coordinator->OnGiveUp());
  }

  void Check(const World& world) {
    for (const Member& member : world.members) {
      EXPECT_TRUE(member.image != Image::kPublished || world.decided) << world.Key();
      EXPECT_TRUE(member.image != Image::kNone || !world.decided) << world.Key();
    }
    // No job runs on from the moment of the images before all have reached it.
    const auto& [a, b] = world.members;
    if (world.decided) {
      EXPECT_TRUE(a.ran_since && b.ran_since) << world.Key();
    }
  }

  // Everybody is back, and those in doubt ask a coordinator that is reachable: one that still works on the
  // group makes them wait, so it ends first.
  void CheckRecovery(const World& world) {
    std::set<Image> left;
    for (const Member& member : world.members) {
      Image image = member.image;
      if (image == Image::kPrepared) image = world.decided ? Image::kPublished : Image::kNone;
      left.insert(image);
    }
    EXPECT_EQ(left.size(), 1u) << world.Key();
    if (*left.begin() == Image::kPublished) ++committed_;
  }

  std::set<std::string> seen_;
  std::vector<World> reached_;  // and not followed yet
  size_t committed_ = 0;
};

TEST(GroupProtocol, IsAllOrNothingInEveryOrder) {
  Explorer explorer;
  explorer.Explore(World());
  EXPECT_GT(explorer.states(), 1000u);
  EXPECT_GT(explorer.committed(), 100u);
  RecordProperty("states", static_cast<int>(explorer.states()));
}

}  // namespace
}  // namespace rekindle::group
