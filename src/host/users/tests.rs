//! User accounts, made and removed by shadow's programs on a tree in a temporary folder. The tests
//! need root, as these programs do.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

use super::*;

fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let etc = folder.path().join("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    fs::write(etc.join("group"), "root:x:0:\n").unwrap();
    fs::write(etc.join("shadow"), "root:*:19000:0:99999:7:::\n").unwrap();
    fs::write(etc.join("gshadow"), "root:*::\n").unwrap();
    fs::write(etc.join("subuid"), "").unwrap();
    fs::write(etc.join("subgid"), "").unwrap();
    fs::write(
        etc.join("login.defs"),
        "UID_MIN 1000\nUID_MAX 60000\nUSERGROUPS_ENAB yes\nSUB_UID_COUNT 65536\nSUB_GID_COUNT 65536\n",
    )
    .unwrap();
    folder
}

fn user(index: u32) -> WorkloadUser {
    WorkloadUser::from_index(index, "default", &format!("web{index}")).unwrap()
}

#[tokio::test]
async fn makes_and_removes_a_user_as_a_whole() {
    let folder = tree();
    let users = Users::below(&Root::new(folder.path()));
    let (first, second) = (user(3), user(4));
    assert!(users.create(&first).await.unwrap());
    assert!(users.create(&second).await.unwrap());
    assert!(!users.create(&first).await.unwrap(), "nothing is missing");

    let accounts = users.accounts().unwrap();
    let found = accounts.user(&first.name).unwrap();
    assert_eq!((found.uid, found.gid), (20_003, 20_003));
    assert_eq!(found.home, format!("{HOMES}/{}", first.name));
    let passwd = fs::read_to_string(folder.path().join("etc/passwd")).unwrap();
    assert!(passwd.contains(":KAT workload 3:"), "{passwd}");
    assert!(passwd.contains("nologin"), "{passwd}");
    let expected: Vec<_> = [&first, &second]
        .map(|user| (user.name.clone(), u64::from(user.subordinate_start), 65_536))
        .into();
    for ranges in [&accounts.subordinate_uids, &accounts.subordinate_gids] {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|range| (range.owner.clone(), range.start, range.count))
            .collect();
        assert_eq!(ranges, expected, "each has its own range and no other");
    }
    let home = users.home(&first);
    let metadata = fs::metadata(&home).unwrap();
    assert_eq!(metadata.uid(), 20_003);
    assert_eq!(metadata.mode() & 0o7777, 0o700);

    fs::create_dir_all(home.join(".local/share/containers")).unwrap();
    users.remove(&first).await.unwrap();
    assert!(!home.exists());
    let accounts = users.accounts().unwrap();
    assert!(accounts.user(&first.name).is_none() && accounts.group(&first.name).is_none());
    assert_eq!(accounts.subordinate_uids.len(), 1);
    assert!(accounts.user(&second.name).is_some());
    users.remove(&first).await.unwrap();
    assert!(users.create(&first).await.unwrap(), "and again");
}

#[tokio::test]
async fn joins_groups_and_leaves_them() {
    let folder = tree();
    let group = folder.path().join("etc/group");
    let more = "dialout:x:20:ann\nvideo:x:44:\nrender:x:105:\n";
    fs::write(&group, format!("root:x:0:\n{more}")).unwrap();
    let users = Users::below(&Root::new(folder.path()));
    let user = user(8);
    users.create(&user).await.unwrap();
    let of_user = || users.accounts().unwrap().groups_of(&user.name);
    for wanted in [
        &["dialout", "video"][..],
        &["render"],
        &["render", "video"],
        &[],
    ] {
        let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
        users.set_groups(&user, &wanted).await.unwrap();
        assert_eq!(of_user(), wanted);
    }
    let dialout = users.accounts().unwrap().group("dialout").unwrap().clone();
    assert_eq!(dialout.members, ["ann"], "others stay");
    let none = ["no-such-group".to_owned()].into();
    users.set_groups(&user, &none).await.unwrap_err();
    users
        .set_groups(&user, &["video".to_owned()].into())
        .await
        .unwrap();
    assert!(!users.create(&user).await.unwrap(), "nothing else changed");
    users.remove(&user).await.unwrap();
    assert!(!fs::read_to_string(&group).unwrap().contains(&user.name));
}

#[tokio::test]
async fn completes_half_a_user() {
    let folder = tree();
    let users = Users::below(&Root::new(folder.path()));
    let user = user(7);
    users.create(&user).await.unwrap();
    fs::write(folder.path().join("etc/subgid"), "").unwrap();
    fs::remove_file(folder.path().join("etc/subuid")).unwrap();
    fs::remove_dir(users.home(&user)).unwrap();
    assert!(users.create(&user).await.unwrap());
    let accounts = users.accounts().unwrap();
    assert_eq!(accounts.subordinate_uids, accounts.subordinate_gids);
    assert_eq!(accounts.subordinate_uids.len(), 1);
    assert!(users.home(&user).is_dir());
}

#[tokio::test]
async fn leaves_someone_elses_account_alone() {
    let folder = tree();
    let users = Users::below(&Root::new(folder.path()));
    let user = user(5);
    let line = format!("{}:x:20005:20005:By hand:/srv:/bin/sh\n", user.name);
    let path = folder.path().join("etc/passwd");
    let mut passwd = fs::read_to_string(&path).unwrap();
    passwd.push_str(&line);
    fs::write(&path, &passwd).unwrap();
    let error = users.create(&user).await.unwrap_err();
    assert!(matches!(error, UserError::Taken { .. }), "{error}");
    users.remove(&user).await.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), passwd);
    let error = users.check_range(20_000, 10, 1_879_048_192).unwrap();
    assert_eq!(error.len(), 1);
}

#[tokio::test]
async fn a_link_in_place_of_the_home_is_refused() {
    let folder = tree();
    let users = Users::below(&Root::new(folder.path()));
    let user = user(6);
    let target = folder.path().join("target");
    fs::create_dir(&target).unwrap();
    fs::create_dir_all(users.home(&user).parent().unwrap()).unwrap();
    symlink(&target, users.home(&user)).unwrap();
    let error = users.create(&user).await.unwrap_err();
    assert!(matches!(error, UserError::File(_)), "{error}");
    assert_eq!(fs::metadata(&target).unwrap().uid(), 0);
}
