// From which of a job's images `run --resume` goes on: that which shows the job the furthest. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// The moment of an image that a supervisor has taken, by its machine's clock: its tag says so, wherever the
// image has come to, while the time of a list is that of the name there. Nothing: the tag was given by
// somebody.
std::optional<absl::Time> TimeOfTag(absl::string_view reference);

// As far as it is known: else when it got its name.
absl::Time MomentOf(const v1::Image& image);

// Of `images`, of one name and as a store lists them (what was committed last comes first, whatever the
// clocks say), the newest first, damaged ones too. An image and its tags are there once, under the oldest
// name. The store's order counts, but labels where they tell, since what came from elsewhere may have come in
// any order: of one start of a job the numbers of its images, and of a start that descends from an image of
// another that it is the later one, as is one that was begun with the other one known (JobWay::CountsBefore).
// FailedPrecondition: it can't be told which is the newest, since one has a
// name that was given to it later than the newest of a supervised job was taken, and may show any moment, or
// since what came here last was taken earlier by its clock.
absl::StatusOr<std::vector<v1::Image>> ResumePoints(std::vector<v1::Image> images);

// In a store that several users share: takes out of `there` what is none of the job of `here`, and not of
// whom the images there are that are here, too. Where none is, nothing: who that is there is not known.
void DropOtherUsersImages(const std::vector<v1::Image>& here, std::vector<v1::Image>* there);

// What a job left elsewhere after all of `here`, points as above. Null: nothing. `listed_there`: of the same
// name, as the place lists them, the last one first; where there are no points here, any of them that is not
// damaged is newer. Where labels tell, they count; else where the newest of `here` is there, the place's
// order, and where nothing of `here` is there, the clocks. FailedPrecondition: it can't be told, or something
// there went another way than what is here, and has not been seen here. `place`: as --from takes it.
absl::StatusOr<const v1::Image*> NewerElsewhere(const std::vector<v1::Image>& here,
                                                const std::vector<v1::Image>& listed_there,
                                                const std::string& place);

}  // namespace rekindle::cli
