// What is remembered of supervised jobs, on disk: STORE/supervised/NAME.json, for root's eyes alone, since it
// holds the job's environment. All functions are thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/store.h"
#include "rekindle/v1/supervised_job.pb.h"
#include "rekindle/v1/supervision.pb.h"
#include "supervise/checkpoint_interval.h"
#include "supervise/restart_policy.h"

namespace rekindle::daemon {

std::string SupervisedDirectory(absl::string_view store);
std::string SupervisedRecordPath(absl::string_view directory, absl::string_view name);

// In a store that is there. Makes no folder above it.
absl::Status MakeSupervisedDirectory(const std::string& directory);
// All at once: after a crash it is the old one or the new one.
absl::Status WriteSupervisedRecord(const std::string& directory, const v1::SupervisedJobRecord& record);
// With what is beside it.
absl::Status RemoveSupervisedRecord(const std::string& directory, absl::string_view name);
// NotFound: there is none; DataLoss: it is damaged; FailedPrecondition: it is of a newer version, whose job
// it stays; any other error: it can't be read now.
absl::StatusOr<v1::SupervisedJobRecord> ReadSupervisedRecord(const std::string& directory,
                                                             absl::string_view name);
// The names of those there are. An error: that can't be known now.
absl::StatusOr<std::vector<std::string>> ListSupervisedRecords(const std::string& directory);

// The image that a job began with which was started from one, kept beside its record for when that can't be
// read: the image's labels may be those of another job. Durable when it returns OK.
absl::Status WriteFirstImage(const std::string& directory, absl::string_view name,
                             const v1::RestartPoint& image);
// Of one that began with its command.
absl::Status RemoveFirstImage(const std::string& directory, absl::string_view name);
// NotFound: it was started from none, or by a version that did not note it; any other error: that is not
// known.
absl::StatusOr<v1::RestartPoint> ReadFirstImage(const std::string& directory, absl::string_view name);

// What is there of a job that had a name, and has ended: for who takes the name, until he has started.
struct EndedRecord {
  std::optional<v1::SupervisedJobRecord> record;  // nothing: none is there, or it can't be read
  std::optional<v1::RestartPoint> first_image;
};
EndedRecord ReadEndedRecord(const std::string& directory, absl::string_view name);
// In place of what is there under that name, which is removed where there was none.
absl::Status PutBackEndedRecord(const std::string& directory, absl::string_view name,
                                const EndedRecord& before);

// That the daemon left the life of the record as it ended in an orderly way, for the next one. Not synced:
// the machine's end ends the life anyway.
absl::Status WriteLeftLife(const std::string& directory, const v1::SupervisedJobRecord& record);
absl::Status RemoveLeftLife(const std::string& directory, absl::string_view name);
// Is it known of that very life?
bool IsLeftLife(const std::string& directory, const v1::SupervisedJobRecord& record);

// Is it another machine's, which shares the store? Its processes are not to be looked for here, and whether
// they live is not known here. The message says whose it is, and what to do if that machine is gone.
absl::Status CheckIsOfThisMachine(const std::string& directory, const v1::SupervisedJobRecord& record);

// The name of a job's images, without tag.
std::string NameOfImages(const v1::SupervisedJobRecord& record);
// AlreadyExists: another job of the same owner that has not ended gives its images the name that this one's
// are to have. Where two did, copies of one would be removed as old ones of the other, and a later start
// would go on from whichever came last.
absl::Status CheckImagesNameIsFree(const std::string& directory, const v1::SupervisedJobRecord& record);

// Of a job that goes on from this image, as far as that was taken of a supervised job: when it was submitted
// first, the number of that image, those of its own, which are greater, and which starts it descends from.
void GoOnFromStart(const store::ImageInfo& image, v1::SupervisedJobRecord* record, v1::RestartPoint* first);
// After that: which of `known`, images of its name that whoever starts it has here, went another way than
// this one. He has decided against them.
void NoteOtherWays(const store::ImageInfo& image, const std::vector<store::ImageInfo>& known,
                   v1::SupervisedJobRecord* record);
// Whose the job is. `User` is a Caller, or has uid, gid and groups as one.
template <typename User>
void GetOwner(const v1::SupervisedJobRecord& record, User* user) {
  user->uid = record.uid();
  user->gid = record.gid();
  user->groups.assign(record.groups().begin(), record.groups().end());
}
template <typename User>
void SetOwner(const User& user, v1::SupervisedJobRecord* record) {
  record->set_uid(user.uid);
  record->set_gid(user.gid);
  record->mutable_groups()->Assign(user.groups.begin(), user.groups.end());
}

// The greatest number that the image can have which a job has begun with: those of its own start have greater
// ones.
uint64_t NumbersBeforeStart(const v1::SupervisedJobRecord& record);

// An image of an earlier start of that job: did a supervisor take it, of the same owner's job of that name,
// for nobody but itself, so that it goes when newer ones are there?
bool MayRemoveOfEarlierStart(const store::ImageInfo& image, const v1::SupervisedJobRecord& record);

// As the store finds this very image, whoever has its tag by now.
std::string ExactNameOf(const v1::RestartPoint& point);

supervise::RestartState RestartStateOf(const v1::SupervisedJobRecord& record);
void SetRestartState(const supervise::RestartState& state, v1::SupervisedJobRecord* record);
supervise::IntervalState IntervalStateOf(const v1::SupervisedJobRecord& record);
void SetIntervalState(const supervise::IntervalState& state, v1::SupervisedJobRecord* record);
supervise::RestartOptions RestartOptionsOf(const v1::Supervision& policy);
supervise::IntervalOptions IntervalOptionsOf(const v1::Supervision& policy);

// InvalidArgument says which of its numbers makes no sense. Fills in what is 0.
absl::Status CompletePolicy(v1::Supervision* policy);

}  // namespace rekindle::daemon
