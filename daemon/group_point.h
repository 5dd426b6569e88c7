// Where tests stop or kill a daemon in the middle of a group's protocol: docs/testing.md.
#pragma once

namespace rekindle::daemon {

// The points, in the order of the protocol.
namespace group_point {
inline constexpr char kMemberPrepared[] = "member-prepared";
inline constexpr char kMemberFrozen[] = "member-frozen";
inline constexpr char kMemberStoring[] = "member-storing";
inline constexpr char kMemberStored[] = "member-stored";     // durable, the coordinator does not know yet
inline constexpr char kMemberInDoubt[] = "member-in-doubt";  // it does
inline constexpr char kMemberCommitting[] = "member-committing";  // told so, not done yet
inline constexpr char kMemberCommitted[] = "member-committed";
// Of a restore.
inline constexpr char kMemberReady[] =
    "member-ready";  // its processes stand; the coordinator does not know yet
inline constexpr char kMemberRuns[] = "member-runs";  // the coordinator does not know yet
inline constexpr char kMemberKept[] = "member-kept";
inline constexpr char kCoordinatorReady[] = "coordinator-ready";  // all stand, nobody was told to go
inline constexpr char kCoordinatorBegun[] = "coordinator-begun";
inline constexpr char kCoordinatorFreeze[] = "coordinator-freeze";  // about to say so
inline constexpr char kCoordinatorGo[] = "coordinator-go";
inline constexpr char kCoordinatorDeciding[] = "coordinator-deciding";  // all have stored, nothing is decided
inline constexpr char kCoordinatorDecided[] = "coordinator-decided";    // durably, nobody knows yet
inline constexpr char kCoordinatorCommitted[] = "coordinator-committed";  // all know
}  // namespace group_point

// Raises a signal when $REKINDLE_GROUP_POINT is "POINT=KILL" or "POINT=STOP"; else does nothing.
void PassGroupPoint(const char* point);

}  // namespace rekindle::daemon
